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

{{/* A reference out of repository, tag and digest: (dict "image" .Values.image "version" .Chart.AppVersion) */}}
{{- define "pgrouting.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .version) -}}
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
