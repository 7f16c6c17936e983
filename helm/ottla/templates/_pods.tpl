{{/* Parts of pods that brokers, ZooKeeper and the services around the log share. */}}

{{/* (dict "root" "component" "antiAffinity" "replicas" "affinity"). "hard" begins with the replicas that a majority or an ISR needs. */}}
{{- define "ottla.affinity" -}}
{{- $affinity := deepCopy (default dict .affinity) -}}
{{- $labels := merge (include "ottla.selector" .root | fromYaml) (dict "app.kubernetes.io/component" .component) -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- if and (eq .antiAffinity "hard") (ge (int .replicas) 3) -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- else if ne .antiAffinity "none" -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) -}}
{{- end -}}
{{- with $affinity -}}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* The API version of PodDisruptionBudget: policy/v1 from Kubernetes 1.21 on. */}}
{{- define "ottla.budgetVersion" -}}
{{- if semverCompare ">=1.21-0" .Capabilities.KubeVersion.Version -}}policy/v1{{- else -}}policy/v1beta1{{- end -}}
{{- end -}}

{{/* The probes of a service of ours, from values like broker.probes. */}}
{{- define "ottla.probes" -}}
# Its budget is for what comes before the event loop turns.
startupProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: {{ .startup.periodSeconds }}
  failureThreshold: {{ .startup.failureThreshold }}
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: http
  periodSeconds: {{ .readiness.periodSeconds }}
  failureThreshold: {{ .readiness.failureThreshold }}
  timeoutSeconds: {{ .readiness.timeoutSeconds }}
# The event loop turns. Never a matter of ZooKeeper: to restart all because it is away would be the outage.
livenessProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: {{ .liveness.periodSeconds }}
  failureThreshold: {{ .liveness.failureThreshold }}
  timeoutSeconds: {{ .liveness.timeoutSeconds }}
{{- end -}}
