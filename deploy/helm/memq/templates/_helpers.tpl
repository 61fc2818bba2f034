{{/* Of all objects of a release; short enough for what Kubernetes adds to names of pods. */}}
{{- define "memq.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* What names the pods of a release; it never changes, as a StatefulSet could not follow. */}}
{{- define "memq.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "memq.labels" -}}
{{ include "memq.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "memq.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "memq.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{/* Name of the Secret with the brokers' certificate; empty without TLS. */}}
{{- define "memq.tlsSecret" -}}
{{- if .Values.tlsSecret -}}
{{- .Values.tlsSecret -}}
{{- else if .Values.certManager.enabled -}}
{{- include "memq.fullname" . }}-tls
{{- end -}}
{{- end }}

{{/* What the name of each pod ends with. */}}
{{- define "memq.podDomain" -}}
{{ include "memq.fullname" . }}-brokers.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/*
A map as TOML: first its plain values, then a table for each map in it. Helm's own toToml writes
whole numbers of values.yaml as 3.0, which is no count.
*/}}
{{- define "memq.toml" -}}
{{- $path := .path -}}
{{- range $name, $value := .map }}
{{- if not (kindIs "map" $value) }}
{{ toJson $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $name, $value := .map }}
{{- if and (kindIs "map" $value) $value }}
{{- $table := append $path (toJson $name) }}

[{{ join "." $table }}]
{{- include "memq.toml" (dict "map" $value "path" $table) }}
{{- end }}
{{- end }}
{{- end }}
