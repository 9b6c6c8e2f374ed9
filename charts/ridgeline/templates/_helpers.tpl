{{- define "ridgeline.name" -}}
{{- $name := .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- printf "%s-%s" $name .component -}}
{{- end -}}

{{- define "ridgeline.labels" -}}
app.kubernetes.io/name: ridgeline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ridgeline.selector" -}}
app.kubernetes.io/name: ridgeline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "ridgeline.image" -}}
{{- $own := (index .Values .component).image -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- $own | default (printf "%s/ridgeline-%s:%s" .Values.image.repository .component $tag) -}}
{{- end -}}

{{- define "ridgeline.secret" -}}
{{- .Values.existingSecret | default (include "ridgeline.name" (merge (dict "component" "secrets") .)) -}}
{{- end -}}

{{- define "ridgeline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "ridgeline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "ridgeline.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with (index .Values .component).nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index .Values .component).tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
