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

{{/* Of the services around the log: their file of settings, and the certificate that they show. */}}
{{- define "ottla.serviceMounts" -}}
- name: configuration
  mountPath: /etc/ottla
  readOnly: true
- name: run
  mountPath: /run/ottla
- name: temporary
  mountPath: /tmp
{{- if include "ottla.tls.isOfServices" . }}
- name: tls
  mountPath: /etc/ottla-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "ottla.serviceVolumes" -}}
# In memory: it may hold a private key.
- name: run
  emptyDir:
    medium: Memory
    sizeLimit: 4Mi
- name: temporary
  emptyDir: {}
{{- if include "ottla.tls.isOfServices" . }}
- name: tls
  secret:
    secretName: {{ include "ottla.tls.secret" . | quote }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* The init containers of such a service: makes the PEM file that it shows to brokers and operators. (dict "root" "image" "pullPolicy") */}}
{{- define "ottla.keystore" -}}
{{- $root := .root -}}
{{- if include "ottla.tls.isShownByServices" $root -}}
initContainers:
  - name: prepare
    image: {{ .image }}
    imagePullPolicy: {{ .pullPolicy }}
    command:
      - sh
      - -ec
      # A key that comes out of a vault may end without a new line.
      - 'umask 077; { cat "$0"; echo; cat "$1"; } >/run/ottla/keystore.pem'
      - /etc/ottla-tls/{{ $root.Values.tls.privateKeyKey }}
      - /etc/ottla-tls/{{ $root.Values.tls.certificateKey }}
    securityContext:
      {{- toYaml $root.Values.broker.containerSecurityContext | nindent 6 }}
    resources:
      requests:
        cpu: 10m
        memory: 16Mi
      limits:
        memory: 32Mi
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "ottla.serviceMounts" $root | nindent 6 }}
{{- end -}}
{{- end -}}
