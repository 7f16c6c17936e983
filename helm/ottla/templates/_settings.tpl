{{/* The brokers' properties, but for what differs from pod to pod: files/scripts/configure.py adds that in the pod. */}}

{{/* What the chart says itself, and the value by which it is changed. */}}
{{- define "ottla.ownedSettings" -}}
broker.id: broker.idBase
broker.rack: broker.rack
listeners: externalAccess
advertised.listeners: externalAccess
listener.security.protocol.map: tls.listeners
inter.broker.listener.name: tls.listeners
security.inter.broker.protocol: tls.listeners
control.listener: tls.listeners
control.advertised.listener: tls.listeners
control.security.protocol: tls.listeners
http.listener: metrics
metrics.partition.enabled: metrics.perPartition
log.dir: broker.persistence.volumes
log.dirs: broker.persistence.volumes
zookeeper.connect: zookeeper.connect
zookeeper.digest.username: zookeeper.digest.existingSecret
zookeeper.digest.password: zookeeper.digest.existingSecret
ssl.keystore.type: tls
ssl.keystore.location: tls.existingSecret
ssl.truststore.type: tls
ssl.truststore.location: tls.existingSecret
ssl.client.auth: tls.clientAuth
{{- end -}}

{{/* As YAML: settings that a person may say otherwise in broker.settings. */}}
{{- define "ottla.defaultSettings" -}}
{{- $copies := min 3 (int .Values.broker.replicas) -}}
{{- $needed := ternary 2 1 (ge (int $copies) 3) -}}
default.replication.factor: {{ $copies }}
min.insync.replicas: {{ $needed }}
offsets.topic.replication.factor: {{ $copies }}
transaction.state.log.replication.factor: {{ $copies }}
transaction.state.log.min.isr: {{ $needed }}
# ZooKeeper starts at the same time: waiting for it is quicker than being restarted for it.
zookeeper.connection.timeout.ms: 120000
{{- if .Values.zookeeper.digest.existingSecret }}
zookeeper.set.acl: true
{{- end }}
{{- end -}}

{{/* As YAML: settings that only the chart says. */}}
{{- define "ottla.chartSettings" -}}
{{- $external := .Values.externalAccess.enabled -}}
listeners: INTERNAL://:9092{{ if $external }},EXTERNAL://:9094{{ end }}
listener.security.protocol.map: INTERNAL:{{ include "ottla.protocol" (list . "INTERNAL") }}{{ if $external }},EXTERNAL:{{ include "ottla.protocol" (list . "EXTERNAL") }}{{ end }}
inter.broker.listener.name: INTERNAL
control.listener: ":9095"
control.security.protocol: {{ include "ottla.protocol" (list . "CONTROL") }}
http.listener: ":9404"
{{- if .Values.metrics.perPartition }}
metrics.partition.enabled: true
{{- end }}
log.dirs: /var/lib/ottla/log{{ range $number := untilStep 1 (int .Values.broker.persistence.volumes) 1 }},/var/lib/ottla-{{ $number }}/log{{ end }}
zookeeper.connect: {{ include "ottla.zookeeper.servers" . }}{{ .Values.zookeeper.chroot }}
{{- if include "ottla.tls.secret" . }}
ssl.keystore.type: PEM
ssl.keystore.location: /run/ottla/keystore.pem
ssl.client.auth: {{ .Values.tls.clientAuth }}
{{- end }}
{{- end -}}

{{- define "ottla.serverProperties" -}}
{{- $owned := include "ottla.ownedSettings" . | fromYaml -}}
{{- range $name, $value := .Values.broker.settings -}}
{{- with get $owned $name -}}
{{- fail (printf "broker.settings: %s is set by the chart; see the value %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- $settings := merge (include "ottla.chartSettings" . | fromYaml) .Values.broker.settings (include "ottla.defaultSettings" . | fromYaml) -}}
{{- range $name := keys $settings | sortAlpha }}
{{- $value := get $settings $name }}
{{ $name }}={{ include "ottla.propertyValue" $value }}
{{- end }}
{{- end -}}

{{/* As java.util.Properties reads it back. A large number is a float to Helm, and must not become 1e+09. */}}
{{- define "ottla.propertyValue" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- $text := toString . | replace "\\" "\\\\" | replace "\n" "\\n" | replace "\t" "\\t" -}}
{{- if hasPrefix " " $text }}\{{ end }}{{ $text -}}
{{- end -}}
{{- end -}}

{{/* What configure.py is told. */}}
{{- define "ottla.podConfiguration" -}}
{{- $external := .Values.externalAccess -}}
{{- $configuration := dict
  "id_base" (int .Values.broker.idBase)
  "domain" (include "ottla.broker.domain" .)
  "rack" (dict "node_label" (ternary .Values.broker.rack.nodeLabel "" .Values.broker.rack.fromNode) "values" .Values.broker.rack.values)
  "zookeeper_digest" (ne .Values.zookeeper.digest.existingSecret "")
-}}
{{- if include "ottla.tls.secret" . -}}
{{- $_ := set $configuration "tls" (dict "certificate" .Values.tls.certificateKey "private_key" .Values.tls.privateKeyKey "authorities" .Values.tls.authoritiesKey) -}}
{{- end -}}
{{- if $external.enabled -}}
{{- $_ := set $configuration "external" (dict
  "type" $external.type
  "service" (printf "%s-broker" (include "ottla.fullname" .))
  "hosts" $external.hosts
  "node_ports" $external.nodePorts
  "node_external_address" $external.nodeExternalAddress
  "port" (int $external.port)
  "wait_seconds" (int $external.waitSeconds)
) -}}
{{- end -}}
{{- toPrettyJson $configuration -}}
{{- end -}}

{{/* The files of the brokers' ConfigMap; pods carry their checksum. */}}
{{- define "ottla.brokerFiles" -}}
server.properties: |
  {{- include "ottla.serverProperties" . | trim | nindent 2 }}
pod.json: |
  {{- include "ottla.podConfiguration" . | nindent 2 }}
configure.py: |
  {{- .Files.Get "files/scripts/configure.py" | nindent 2 }}
drain.sh: |
  {{- .Files.Get "files/scripts/drain.sh" | nindent 2 }}
{{- end -}}
