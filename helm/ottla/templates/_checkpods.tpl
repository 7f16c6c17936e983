{{/* Pods that run a script of files/scripts once, in the broker's image, as clients: the checks of `helm test`, and the hook. */}}

{{/* librdkafka's properties for a listener, as JSON: (list $ "INTERNAL"). */}}
{{- define "ottla.clientProperties" -}}
{{- $root := index . 0 -}}
{{- $properties := dict -}}
{{- if eq (include "ottla.protocol" .) "SSL" -}}
{{- $properties = dict "security.protocol" "ssl" "ssl.ca.location" (printf "/etc/ottla-tls/%s" $root.Values.tls.authoritiesKey) -}}
{{- if ne $root.Values.tls.clientAuth "none" -}}
{{- $_ := set $properties "ssl.certificate.location" (printf "/etc/ottla-tls/%s" $root.Values.tls.certificateKey) -}}
{{- $_ := set $properties "ssl.key.location" (printf "/etc/ottla-tls/%s" $root.Values.tls.privateKeyKey) -}}
{{- end -}}
{{- end -}}
{{- toJson $properties -}}
{{- end -}}

{{- define "ottla.checkLabels" -}}
{{ include "ottla.labels" . }}
app.kubernetes.io/component: check
{{ include "ottla.clientLabel" . }}: "true"
{{- end -}}

{{/*
The spec of such a pod.
(dict "root" $ "script" "listener_check.py" "listener" "INTERNAL" "arguments" (list …) "account" "" or a ServiceAccount whose token it needs)
*/}}
{{- define "ottla.checkPod" -}}
{{- $root := .root -}}
{{- $tls := eq (include "ottla.protocol" (list $root .listener)) "SSL" -}}
restartPolicy: Never
serviceAccountName: {{ default (include "ottla.serviceAccountName" $root) .account }}
automountServiceAccountToken: {{ ne (default "" .account) "" }}
enableServiceLinks: false
{{- include "ottla.pullSecrets" $root }}
securityContext:
  {{- toYaml $root.Values.broker.podSecurityContext | nindent 2 }}
{{- with $root.Values.broker.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.broker.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: check
    image: {{ include "ottla.broker.image" $root }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    # In the object itself: a pre-upgrade hook runs before the new release's ConfigMaps are there.
    # The interpreter that `ottla` runs with, and not the system's.
    command: [tini, --, python, -c]
    args:
      - |
        {{- $root.Files.Get (printf "files/scripts/%s" .script) | nindent 8 }}
      {{- range .arguments }}
      - {{ . | quote }}
      {{- end }}
    env:
      - name: CLIENT_PROPERTIES
        value: {{ include "ottla.clientProperties" (list $root .listener) | quote }}
      - name: POD_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
    securityContext:
      {{- toYaml $root.Values.broker.containerSecurityContext | nindent 6 }}
    resources:
      {{- toYaml $root.Values.checks.resources | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - name: temporary
        mountPath: /tmp
      {{- if $tls }}
      - name: tls
        mountPath: /etc/ottla-tls
        readOnly: true
      {{- end }}
volumes:
  - name: temporary
    emptyDir: {}
  {{- if $tls }}
  - name: tls
    secret:
      secretName: {{ include "ottla.tls.secret" $root | quote }}
      defaultMode: 0440
  {{- end }}
{{- end -}}
