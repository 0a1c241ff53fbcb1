#!/usr/bin/env bash
# The demo: PostgreSQL with two standbys, the operator, a pool, and a load through its Service.
#   demo.sh up     brings it up on the local cluster, or on that of KUBECONFIG with CLUSTER=existing
#   demo.sh down   ends it
# An existing cluster pulls its images from IMAGE_REGISTRY (`e2e/cluster/images.sh push REGISTRY` puts them there).
set -euo pipefail
source "$(dirname "$0")/cluster/settings.sh"

namespace=pgrouting-demo
system=pgrouting-system
registry=${IMAGE_REGISTRY:-localhost}

if [ "${CLUSTER:-local}" = existing ]; then
  : "${KUBECONFIG:?CLUSTER=existing needs KUBECONFIG}"
  kubectl_command=kubectl
  kube() { kubectl "$@"; }
  tool() { command "$@"; }
else
  kubectl_command=e2e/cluster/kubectl
  kube() { "$here/kubectl" "$@"; }
  tool() { KUBECONFIG=$KUBECONFIG_FILE HELM_CACHE_HOME=$STATE/helm in_netns "$STATE/bin/$1" "${@:2}"; }
fi

apply() { # manifest of this tree
  sed "s|image: localhost/|image: $registry/|" "$root/$1" | kube -n "$namespace" apply --server-side -f - >/dev/null
}

sql() {
  # shellcheck disable=SC2016 # expanded inside the pod
  kube -n "$namespace" exec -i pg-0 -- bash -c 'PGPASSWORD=$PASSWORD psql -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -U "$USERNAME" postgres'
}

up() {
  if [ "${CLUSTER:-local}" != existing ]; then
    make --no-print-directory -C "$root" cluster-up images
  fi
  step "PostgreSQL: a primary, two standbys, and a database for a mirror"
  kube create namespace "$namespace" --dry-run=client -o yaml | kube apply -f - >/dev/null
  kube label namespace "$namespace" --overwrite pod-security.kubernetes.io/enforce=restricted >/dev/null
  apply e2e/cluster/postgres.yaml
  apply e2e/demo/mirror.yaml
  kube -n "$namespace" wait statefulset/pg --for=jsonpath='{.status.readyReplicas}'=3 --timeout=180s >/dev/null
  sql <<'SQL'
SELECT 'CREATE ROLE orders LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'orders') \gexec
ALTER ROLE orders PASSWORD 'orders-of-the-demo';
SELECT 'CREATE DATABASE orders OWNER orders' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'orders') \gexec
SQL
  step "the operator, by helm"
  tool helm upgrade --install pgrouting "$root/charts/pgrouting" --namespace "$system" --create-namespace \
    --take-ownership --set image.repository="$registry/pgrouting-operator" \
    --set proxyImage.repository="$registry/pgrouting-proxy" --wait --timeout 120s >/dev/null
  step "the pool"
  apply e2e/demo/pool.yaml
  kube -n "$namespace" wait pgrp/orders --for=condition=Ready --timeout=120s >/dev/null
  edit '{"stage":"PoolingOnly"}'
  step "the load"
  kube -n "$namespace" delete job/load --ignore-not-found >/dev/null
  apply e2e/demo/load.yaml
  wait_until 300 "the load has no figures yet" has_figures

  step "the stage PoolingOnly: what a split would do"
  wait_until 300 "there is no forecast yet" has_forecast
  rollout .forecast

  step "the stage Split, by one edit: it is walked to in steps, each held until its gates pass"
  edit '{"stage":"Split"}'
  watch_until 180 at Split 50

  step "a fault: the replicas stop replaying what the primary writes"
  on_standbys "SELECT pg_wal_replay_pause()"
  watch_until 120 held
  rollout .lastRollback

  step "the remedy: they replay again; and another attempt"
  on_standbys "SELECT pg_wal_replay_resume()"
  wait_until 60 "the replicas still lag" has_healthy_replicas
  edit '{"attempt":1}'
  watch_until 240 arrived Split
  wait_until 120 "no replica has taken a read yet" has_reads_on_replicas

  step "the same content in the other database, and the stage Mirror, by one edit"
  copy_content
  edit '{"stage":"Mirror"}'
  watch_until 240 arrived Mirror
  wait_until 120 "nothing has been copied yet" has_copies
  screen
}

edit() { # of spec.rollout
  echo
  echo "\$ $kubectl_command -n $namespace patch pgrp orders --type=merge -p '{\"spec\":{\"rollout\":$1}}'"
  kube -n "$namespace" patch pgrp orders --type=merge -p "{\"spec\":{\"rollout\":$1}}" >/dev/null
}

rollout() { # filter of status.rollout
  kube -n "$namespace" get pgrp orders -o json | jq ".status.rollout | $1"
}

progressing() { # field
  kube -n "$namespace" get pgrp orders -o jsonpath="{.status.conditions[?(@.type=='Progressing')].$1}"
}

# Shows what is said of the rollout, each time that it changes, until it is as it should be.
watch_until() { # seconds, condition
  local deadline=$((SECONDS + $1)) said='' now
  shift
  until "$@"; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "demo: the rollout does not get there: $(progressing message)" >&2
      exit 1
    fi
    now="$(progressing reason): $(progressing message)"
    [ "$now" = "$said" ] || echo "  $(date +%T) $now"
    said=$now
    sleep 1
  done
  columns
}

at() { # stage, percent
  [ "$(rollout '.stage + " " + (.splitPercent|tostring)')" = "\"$1 $2\"" ]
}

held() { [ "$(rollout '.hold != null')" = true ]; }

arrived() { # stage
  [ "$(progressing reason)" = StageReached ] && [ "$(rollout .stage)" = "\"$1\"" ]
}

has_forecast() { [ "$(rollout '.forecast != null')" = true ]; }

has_healthy_replicas() {
  [ "$(kube -n "$namespace" get pgrp orders -o jsonpath='{.status.backends.replicasSummary}')" = 2/2 ]
}

on_standbys() { # statement
  local pod
  for pod in pg-1 pg-2; do
    # shellcheck disable=SC2016 # expanded inside the pod
    kube -n "$namespace" exec -i "$pod" -- bash -c 'PGPASSWORD=$PASSWORD psql -q -o /dev/null -h 127.0.0.1 -U "$USERNAME" postgres' <<<"$1"
  done
}

copy_content() { # of the database orders, with its role
  # shellcheck disable=SC2016 # expanded inside the pod
  kube -n "$namespace" exec -i pg-0 -- bash -c 'set -e -o pipefail
    export PGPASSWORD=$PASSWORD PGUSER=$USERNAME PGOPTIONS=--client-min-messages=warning
    there() { psql -q -v ON_ERROR_STOP=1 -h pg-mirror "$@"; }
    there postgres -c "DROP DATABASE IF EXISTS orders"
    there postgres -c "DROP ROLE IF EXISTS orders"
    there postgres -c "CREATE ROLE orders LOGIN PASSWORD '"'orders-of-the-demo'"'"
    there postgres -c "CREATE DATABASE orders OWNER orders"
    pg_dump -h 127.0.0.1 orders | there orders >/dev/null'
}

has_copies() { mirror_report | grep -q '^[1-9][0-9]* of '; }

mirror_report() {
  kube -n "$namespace" exec pg-0 -- env PGPASSWORD=orders-of-the-demo psql -AtX -h orders -U orders -c 'SHOW MIRROR REPORT'
}

columns() {
  echo
  echo "\$ $kubectl_command -n $namespace get pgrp"
  kube -n "$namespace" get pgrp
}

routed() { # transactions of all proxies, by what took them
  local pod
  kube -n "$namespace" get pods -l app.kubernetes.io/name=pg-routing-proxy -o name | while read -r pod; do
    kube get --raw "/api/v1/namespaces/$namespace/pods/${pod#pod/}:9127/proxy/metrics"
  done | sed -n 's/^pgrouting_proxy_routed_total{.*target="\([a-z]*\)".* \([0-9]*\)$/\1 \2/p' |
    awk '{ sum[$1] += $2 } END { for (target in sum) print sum[target], "transactions on", target }'
}

has_reads_on_replicas() { routed | grep -q 'on replica$'; }

has_figures() { kube -n "$namespace" logs job/load | grep -q '^progress:'; }

step() { echo "demo: $*" >&2; }

screen() {
  local k="$kubectl_command -n $namespace"
  echo
  columns
  echo
  echo "since the proxies started, by their metrics:"
  routed
  echo
  echo "what the copies came to at one proxy (SHOW MIRROR REPORT):"
  mirror_report | head -n 12
  echo
  echo "\$ $k get pods"
  kube -n "$namespace" get pods
  echo
  echo "\$ $k logs job/load --tail=3"
  kube -n "$namespace" logs job/load --tail=3
  cat <<TEXT

It goes on running. What to try next:

  # the load's figures, every two seconds
  $k logs -f job/load
  # more proxies, and the pool's columns as they change
  $k scale pgrp orders --replicas=4 && $k get pgrp orders -w
  # what the gates say, and the way the pool came
  $k get pgrp orders -o jsonpath='{.status.rollout}'
  # conditions and events
  $k describe pgrp orders
  # what the copies came to, the sums of all proxies
  $k get pgrp orders -o jsonpath='{.status.mirror}'
  # no copies any more, by one edit
  $k patch pgrp orders --type=merge -p '{"spec":{"rollout":{"stage":"Split"}}}'
  # the reads back on the primary, too
  $k patch pgrp orders --type=merge -p '{"spec":{"rollout":{"stage":"PoolingOnly"}}}'
  # a server less: every proxy acknowledges it, no connection is broken
  $k patch pgrp orders --type=merge -p '{"spec":{"backends":{"static":{"servers":[{"name":"a","host":"pg-0.pg"},{"name":"b","host":"pg-1.pg"}]}}}}'
  # it comes back
  $k delete deployment orders-proxy
  # a session on a replica; the password is orders-of-the-demo
  $k exec -it pg-0 -- psql -h orders-readonly -U orders
  # the end
  make demo-down
TEXT
}

down() {
  if [ "${CLUSTER:-local}" != existing ]; then
    exec "$here/down.sh"
  fi
  kube delete namespace "$namespace" --ignore-not-found
  tool helm uninstall pgrouting --namespace "$system" --wait || true
}

case "${1:-}" in
up | down) "$1" ;;
*)
  sed -n '3,5s/^# //p' "$0" >&2
  exit 2
  ;;
esac
