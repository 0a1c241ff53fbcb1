#!/usr/bin/env bash
# Tells the stories (or those named) on the local cluster, one after the other, from inside its network namespace.
# Each is a run of its own with a deadline, so one that hangs does not hide the others.
set -euo pipefail
source "$(dirname "$0")/cluster/settings.sh"

if [ ! -e "$NETNS" ] || [ ! -f "$KUBECONFIG_FILE" ]; then
  say "is not up: run make cluster-up images"
  exit 1
fi
stories=("$@")
if [ "${#stories[@]}" -eq 0 ]; then
  # Installing comes first, while the definition is not there yet.
  stories=(install)
  for file in "$root"/e2e/tests/stories/*.rs; do
    name=$(basename "$file" .rs)
    # CloudNativePG takes minutes to build: `make cnpg` tells that one.
    [[ $name =~ ^(install|cnpg)$ ]] || stories+=("$name")
  done
fi

# CloudNativePG: its image, its manifest with that image, and empty folders for the data of its servers.
prepare_cnpg() {
  local module version
  e2e/cluster/images.sh cnpg
  e2e/cluster/images.sh import
  version=$(apt-cache policy postgresql-15 | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
  # It reads the version off the tag.
  "$STATE/bin/ctr" -a "$SOCKET" -n k8s.io images tag --force localhost/postgres:15 "localhost/postgres:$version" >/dev/null
  module=$(cd e2e/cluster/cnpg && go list -mod=mod -m -f '{{.Dir}}' github.com/cloudnative-pg/cloudnative-pg)
  sed -e 's|ghcr.io/cloudnative-pg/cloudnative-pg:.*|localhost/cnpg:1|' -e 's|imagePullPolicy: Always|imagePullPolicy: IfNotPresent|' \
    "$module/releases/cnpg-1.27.0.yaml" >"$STATE/cnpg.yaml"
  rm -rf "$STATE/cnpg"
  install -d -m 777 "$STATE"/cnpg/{1,2,3,4}
  export CNPG_MANIFEST=$STATE/cnpg.yaml CNPG_VOLUMES=$STATE/cnpg CNPG_POSTGRES=localhost/postgres:$version
}

# The proxies' image under another name, as if it were that of another version.
prepare_fleet() {
  local version
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
  "$STATE/bin/ctr" -a "$SOCKET" -n k8s.io images tag --force "localhost/pgrouting-proxy:$version" \
    localhost/pgrouting-proxy:next >/dev/null
}

# The path of a Prometheus server, for a story to start.
prepare_prometheus() {
  PROMETHEUS=$(e2e/cluster/prometheus.sh)
  export PROMETHEUS
}

# The definitions of the Prometheus operator, for stories that apply its kinds.
prepare_monitoring() {
  MONITORING_DEFINITIONS=$(e2e/cluster/monitoring.sh)
  export MONITORING_DEFINITIONS
}

# The programs under another tag, as the version before.
prepare_upgrade() {
  local version name
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
  for name in operator proxy; do
    "$STATE/bin/ctr" -a "$SOCKET" -n k8s.io images tag --force "localhost/pgrouting-$name:$version" \
      "localhost/pgrouting-$name:before" >/dev/null
  done
}

# Built outside the namespace, which leads nowhere.
cd "$root"
case " ${stories[*]} " in *' cnpg '*) prepare_cnpg ;; esac
case " ${stories[*]} " in *' fleet '*) prepare_fleet ;; esac
case " ${stories[*]} " in *' rollout_external '* | *' monitoring '*) prepare_prometheus ;; esac
case " ${stories[*]} " in *' chart_values '* | *' monitoring '*) prepare_monitoring ;; esac
case " ${stories[*]} " in *' upgrade '*) prepare_upgrade ;; esac
cargo test --locked -p pgrouting-e2e --test stories --no-run --message-format=json >"$STATE/tests.json"
program=$(jq -r 'select(.executable != null and .target.name == "stories") | .executable' "$STATE/tests.json")
cargo build --locked -p pgrouting-kubectl --message-format=json >"$STATE/plugin.json"
plugin=$(jq -r 'select(.executable != null and .target.name == "kubectl-pgrp") | .executable' "$STATE/plugin.json")
# kubectl finds it by its name.
mkdir -p "$STATE/plugins"
ln -sf "$plugin" "$STATE/plugins/kubectl-pgrp"

status=0
for story in "${stories[@]}"; do
  [ -f "e2e/tests/stories/$story.rs" ] || { say "no such story: $story" && exit 2; }
  echo "--- story: $story"
  log=$STATE/log/story-$story.log
  began=$SECONDS
  result=0
  RUST_BACKTRACE=0 PATH=$STATE/bin:$STATE/plugins:$PATH KUBECONFIG=$KUBECONFIG_FILE AUDIT_LOG=$STATE/log/audit.json HELM_CACHE_HOME=$STATE/helm \
    nsenter --net="$NETNS" timeout --kill-after=10 "${STORY_TIMEOUT:-600}" \
    "$program" --test-threads=1 --nocapture "$story::" 2>&1 | tee "$log" || result=1
  # A story that was killed has no result of its own.
  grep -q '^test result:' "$log" || echo "test result: FAILED. 0 passed; 1 failed; the story did not end"
  echo "--- story: $story: $([ "$result" -eq 0 ] && echo ok || echo FAILED), $((SECONDS - began)) s"
  [ "$result" -eq 0 ] || status=1
done
exit "$status"
