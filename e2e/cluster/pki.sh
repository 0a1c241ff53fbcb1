# shellcheck shell=bash
# Certificates and kubeconfig files of the control plane, in $STATE/pki and $STATE/*.kubeconfig.

pki_up() {
  local name
  mkdir -p "$STATE/pki"
  cd "$STATE/pki" || return
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=$CLUSTER_NAME-ca" \
    -keyout ca.key -out ca.crt 2>/dev/null
  certificate apiserver kube-apiserver kubernetes "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$NODE_IP,IP:$API_IP"
  certificate admin admin system:masters
  certificate controller-manager system:kube-controller-manager
  certificate scheduler system:kube-scheduler
  certificate proxy system:kube-proxy
  certificate kubelet system:node:node0 system:nodes "DNS:node0,IP:$NODE_IP"
  certificate apiserver-kubelet kube-apiserver-kubelet system:masters
  certificate front-proxy front-proxy
  openssl genrsa -out service-accounts.key 2048 2>/dev/null
  openssl rsa -in service-accounts.key -pubout -out service-accounts.pub 2>/dev/null
  for name in admin controller-manager scheduler proxy kubelet; do
    kubeconfig "$name"
  done
}

certificate() { # file, common name, organization, subject alternative names
  local extensions=$1.ext
  {
    echo "keyUsage=digitalSignature,keyEncipherment"
    echo "extendedKeyUsage=serverAuth,clientAuth"
    [ -z "${4:-}" ] || echo "subjectAltName=$4"
  } >"$extensions"
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/O=${3:-none}/CN=$2" \
    -keyout "$1.key" -out "$1.csr" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" \
    -extfile "$extensions" 2>/dev/null
}

kubeconfig() { # the name of a certificate
  local file=$STATE/$1.kubeconfig
  cat >"$file" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://$NODE_IP:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: local, context: {cluster: local, user: $1}}]
current-context: local
YAML
  chmod 600 "$file"
}
