# shellcheck shell=bash
# The network namespace: a node address on a bridge and nothing that leads out of the machine.

network_up() {
  [ -e "$NETNS" ] || ip netns add "$CLUSTER_NAME"
  in_netns ip link set lo up
  in_netns ip link add node0 type bridge
  in_netns ip addr add "$NODE_IP/24" dev node0
  in_netns ip link set node0 up
  # Services are addresses of no interface: without a default route a packet for them is refused before kube-proxy's
  # rules see it.
  in_netns ip route add default dev node0
  in_netns sysctl -qw net.ipv4.ip_forward=1
}

network_down() {
  # Pods' own namespaces are mounted below $STATE; their interfaces end with them.
  [ ! -e "$NETNS" ] || ip netns delete "$CLUSTER_NAME"
}
