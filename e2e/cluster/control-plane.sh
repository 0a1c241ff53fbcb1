# shellcheck shell=bash
# etcd, the API server with its audit log, the controller manager and the scheduler.

control_plane_up() {
  local pki=$STATE/pki
  cat >"$STATE/audit-policy.yaml" <<'YAML'
# One line a write, without bodies: enough to count who writes what. And one a Secret that is read, or was to be.
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}
- {level: Metadata, verbs: [get], resources: [{group: "", resources: [secrets]}]}
- {level: None}
YAML
  # Nothing here outlives the machine, so etcd need not wait for the disk.
  start etcd etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
  start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$NODE_IP" --secure-port=6443 \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
    --service-account-key-file="$pki/service-accounts.pub" \
    --service-account-signing-key-file="$pki/service-accounts.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range="$SERVICE_CIDR" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
    --kubelet-preferred-address-types=InternalIP --allow-privileged=true \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy \
    --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key" \
    --audit-policy-file="$STATE/audit-policy.yaml" --audit-log-path="$STATE/log/audit.json"
  wait_until 300 "the API server is not ready, see $STATE/log/apiserver.log" kube get --raw /readyz
  start controller-manager kube-controller-manager --kubeconfig="$STATE/controller-manager.kubeconfig" \
    --root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/service-accounts.key" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --use-service-account-credentials --cluster-cidr="$POD_CIDR" --allocate-node-cidrs \
    --service-cluster-ip-range="$SERVICE_CIDR" --leader-elect=false
  start scheduler kube-scheduler --kubeconfig="$STATE/scheduler.kubeconfig" --leader-elect=false
}
