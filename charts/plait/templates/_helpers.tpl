{{/* Start of every name. 40 characters leave room for "-admission-…" within 63. */}}
{{- define "plait.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names outside namespaces: another release of the same name may live in another namespace. */}}
{{- define "plait.clusterName" -}}
{{- printf "%s.%s" (include "plait.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "plait.operator" -}}{{ include "plait.fullname" . }}-operator{{- end -}}
{{- define "plait.admission" -}}{{ include "plait.fullname" . }}-admission{{- end -}}

{{/* Labels that pick a component's pods. Call with (list $ "operator"). */}}
{{- define "plait.selector" -}}
app.kubernetes.io/name: plait
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "plait.labels" -}}
{{- $root := index . 0 -}}
{{ include "plait.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image by its key in .Values.images. Call with (list $ "operator"). */}}
{{- define "plait.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- with $root.Values.images.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* What Pod Security `restricted` asks of a pod, and of each container. */}}
{{- define "plait.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- define "plait.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Fields of a pod that values decide, and the spread over nodes. Call with (list $ "operator"). */}}
{{- define "plait.podPlace" -}}
{{- $root := index . 0 -}}
{{- $told := index $root.Values (index . 1) -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $told.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $told.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $told.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $told.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "plait.selector" . | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end -}}

{{/* What no schema can say. */}}
{{- define "plait.check" -}}
{{- if has .Release.Namespace .Values.watchNamespaces -}}
{{- fail (printf "watchNamespaces: %s is the release's own namespace, which the webhook must never match; install the release into another one" .Release.Namespace) -}}
{{- end -}}
{{- if has "kube-system" .Values.watchNamespaces -}}
{{- fail "watchNamespaces: kube-system is never matched by the webhook; use another namespace" -}}
{{- end -}}
{{- end -}}
