{{/* The name of everything in the release's namespace: at most 50 characters, so that suffixes fit. */}}
{{- define "pgrouting.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "pgrouting" $name) -}}{{- $name = printf "%s-pgrouting" $name -}}{{- end -}}
{{- if gt (len $name) 50 -}}
{{- printf "%s-%s" ($name | trunc 41 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end }}

{{/* The name of what has no namespace: two releases of one name in two namespaces must not meet. */}}
{{- define "pgrouting.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "pgrouting.name" .) -}}
{{- end }}

{{- define "pgrouting.selector" -}}
app.kubernetes.io/name: pgrouting-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "pgrouting.labels" -}}
{{ include "pgrouting.selector" . }}
app.kubernetes.io/part-of: pg-routing
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{- define "pgrouting.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "pgrouting.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* A reference: (dict "image" .Values.image "root" $). The global registry takes the place of the one in the repository. */}}
{{- define "pgrouting.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $parts := splitList "/" $repository -}}
{{- $first := first $parts -}}
{{- /* As container runtimes read it: the first part is a host if it has a dot or a port, or is localhost. */ -}}
{{- if and (gt (len $parts) 1) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- $parts = rest $parts -}}
{{- end -}}
{{- $repository = printf "%s/%s" . (join "/" $parts) -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* Names of Secrets as a pod has them, each once. */}}
{{- define "pgrouting.pullSecrets" -}}
{{- $names := list -}}
{{- range concat .Values.global.imagePullSecrets .Values.imagePullSecrets -}}
{{- if kindIs "map" . -}}{{- $names = append $names .name -}}{{- else -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- range uniq $names }}
- name: {{ . }}
{{- end -}}
{{- end }}

{{/* Whose pods are proxies, of whatever pool. */}}
{{- define "pgrouting.proxySelector" -}}
app.kubernetes.io/name: pg-routing-proxy
app.kubernetes.io/component: proxy
{{- end }}

{{/* Fails where the API server is known to lack a kind: (dict "root" $ "kind" "PodMonitor" "value" "metrics.podMonitor.enabled") */}}
{{- define "pgrouting.needsMonitoring" -}}
{{- if not (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind)) -}}
{{- fail (printf "%s needs the Prometheus operator: this cluster has no %s of monitoring.coreos.com/v1. Install its definitions first, or set %s=false. `helm template` knows of them by --api-versions monitoring.coreos.com/v1/%s" .value .kind .value .kind) -}}
{{- end -}}
{{- end }}

{{/* What the operator may do in each namespace that it watches. */}}
{{- define "pgrouting.rules" -}}
- apiGroups: [pgrouting.dev]
  resources: [pgroutingpools]
  verbs: [get, list, watch]
- apiGroups: [pgrouting.dev]
  resources: [pgroutingpools/status]
  verbs: [get, patch]
# Owner references that block deletion need this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [pgrouting.dev]
  resources: [pgroutingpools/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# The Secrets that pools name are read, one by one; those of the pools' own are written. None is listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
# An annotation on a proxy's pod makes its kubelet look at a changed Secret at once.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
