# shellcheck shell=bash
# The one node: containerd, kubelet and kube-proxy.

containerd_up() {
  mkdir -p "$STATE"/cni/net.d "$STATE"/containerd
  # `ptp` routes each pod's packets through the node, so that Services work without a bridge's netfilter hooks.
  cat >"$STATE/cni/net.d/10-pods.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pods-$CLUSTER_NAME", "plugins": [{"type": "ptp", "ipMasq": false, "ipam": {
  "type": "host-local", "dataDir": "$STATE/cni/addresses", "ranges": [[{"subnet": "${POD_CIDR%/16}/24"}]],
  "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
  # restrict_oom_score_adj: without CAP_SYS_RESOURCE a lower oom_score_adj is refused and runc dies of it.
  cat >"$STATE/containerd/config.toml" <<TOML
version = 3
root = "$STATE/containerd/root"
state = "$STATE/containerd/run"
[grpc]
  address = "$SOCKET"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "$STATE/cni/net.d"
TOML
  start containerd containerd -c "$STATE/containerd/config.toml"
  wait_until 150 "containerd does not answer, see $STATE/log/containerd.log" ctr -a "$SOCKET" version
}

kubelet_up() {
  # Pods see no name server but CoreDNS.
  echo "options ndots:5" >"$STATE/resolv.conf"
  cat >"$STATE/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$CLUSTER_NAME
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $STATE/pki/ca.crt}}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: [$DNS_IP]
resolvConf: $STATE/resolv.conf
containerRuntimeEndpoint: unix://$SOCKET
tlsCertFile: $STATE/pki/kubelet.crt
tlsPrivateKeyFile: $STATE/pki/kubelet.key
podLogsDir: $STATE/log/pods
volumePluginDir: $STATE/kubelet/volume-plugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
syncFrequency: 10s # mounted Secrets follow within seconds
serializeImagePulls: false
YAML
  start kubelet kubelet --config="$STATE/kubelet.yaml" --kubeconfig="$STATE/kubelet.kubeconfig" \
    --hostname-override=node0 --node-ip="$NODE_IP" --root-dir="$STATE/kubelet" --cert-dir="$STATE/pki"
}

kube_proxy_up() {
  cat >"$STATE/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: $POD_CIDR
hostnameOverride: node0
conntrack: {maxPerCore: 0, min: 0}
nftables: {minSyncPeriod: 100ms}
clientConnection: {kubeconfig: $STATE/proxy.kubeconfig}
YAML
  start kube-proxy kube-proxy --config="$STATE/kube-proxy.yaml"
}
