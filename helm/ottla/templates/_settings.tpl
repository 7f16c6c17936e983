{{/* The properties of brokers, but for what differs from pod to pod: files/scripts/configure.py adds that in the pod; and of the schema registry. */}}

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
{{- if .Values.auditCounter.enabled }}
audit.enable: true
{{- end }}
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
{{- include "ottla.properties" (list (include "ottla.defaultSettings" . | fromYaml) .Values.broker.settings (include "ottla.chartSettings" . | fromYaml)) -}}
{{- end -}}

{{/* The lines of a properties file, of several dictionaries: a later one's value counts, false, 0 and "" too, which `merge` takes for no value. */}}
{{- define "ottla.properties" -}}
{{- $settings := dict -}}
{{- range . -}}
{{- range $name, $value := . -}}
{{- /* Null takes back what another values file said. */ -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $settings }}
{{- /* Above 2^53 a number of a values file is no longer the one that was written, and Kafka's largest becomes its smallest. */}}
{{- if and (kindIs "float64" $value) (gt $value 9007199254740992.0) }}
{{- fail (printf "%s: Helm rounds so large a number: write it in quotes" $name) }}
{{- end }}
{{ $name }}={{ include "ottla.propertyValue" $value }}
{{- end }}
{{- end -}}

{{/* As java.util.Properties reads it back. A large number is a float to Helm, and must not become 1e+09. */}}
{{- define "ottla.propertyValue" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- $text := toString . | replace "\\" "\\\\" | replace "\n" "\\n" | replace "\r" "\\r" | replace "\t" "\\t" -}}
{{- if hasPrefix " " $text }}\{{ end }}{{ $text -}}
{{- end -}}
{{- end -}}

{{/* What configure.py is given. */}}
{{- define "ottla.podConfiguration" -}}
{{- $external := .Values.externalAccess -}}
{{- $configuration := dict
  "id_base" (int .Values.broker.idBase)
  "domain" (include "ottla.broker.domain" .)
  "rack" (dict "node_label" (ternary "" .Values.broker.rack.nodeLabel (empty .Values.broker.rack.fromNode)) "values" (default list .Values.broker.rack.values))
  "zookeeper_digest" (not (empty .Values.zookeeper.digest.existingSecret))
-}}
{{- if include "ottla.tls.secret" . -}}
{{- $_ := set $configuration "tls" (dict "certificate" .Values.tls.certificateKey "private_key" .Values.tls.privateKeyKey "authorities" .Values.tls.authoritiesKey) -}}
{{- end -}}
{{- if $external.enabled -}}
{{- $_ := set $configuration "external" (dict
  "type" $external.type
  "service" (printf "%s-broker" (include "ottla.fullname" .))
  "hosts" (default list $external.hosts)
  "node_ports" (default list $external.nodePorts)
  "node_external_address" (not (empty $external.nodeExternalAddress))
  "port" (int $external.port)
  "wait_seconds" (int $external.waitSeconds)
) -}}
{{- end -}}
{{- toPrettyJson $configuration -}}
{{- end -}}

{{/* As YAML: what a service around the log says of its rpc.listener, and a person may say otherwise in its settings: (list $ settings). */}}
{{- define "ottla.rpcSettings" -}}
{{- $root := index . 0 -}}
{{- $asked := get (default dict (index . 1)) "rpc.security.protocol" | default "SSL" | upper -}}
{{- if and (eq $asked "SSL") (eq (include "ottla.protocol" (list $root "RPC")) "SSL") -}}
rpc.security.protocol: SSL
listener.name.rpc.ssl.keystore.location: /run/ottla/keystore.pem
listener.name.rpc.ssl.truststore.location: /etc/ottla-tls/{{ $root.Values.tls.authoritiesKey }}
{{- end -}}
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


{{/* What the chart says of a schema registry itself, and the value by which it is changed. */}}
{{- define "ottla.registryOwnedSettings" -}}
listeners: schemaRegistry
listener.protocol.map: schemaRegistry
host.name: schemaRegistry
host.port: schemaRegistry
inter.instance.listener.name: schemaRegistry
rpc.listener: schemaRegistry
http.listener: metrics
kafkastore.bootstrap.servers: broker
kafkastore.checkpoint.dir: schemaRegistry
kafkastore.security.protocol: tls.listeners
kafkastore.ssl.keystore.location: tls.existingSecret
kafkastore.ssl.truststore.location: tls.existingSecret
zookeeper.connect: zookeeper.connect
zookeeper.digest.username: zookeeper.digest.existingSecret
zookeeper.digest.password: zookeeper.digest.existingSecret
{{- end -}}

{{- define "ottla.registryProperties" -}}
{{- $owned := include "ottla.registryOwnedSettings" . | fromYaml -}}
{{- range $name, $value := .Values.schemaRegistry.settings -}}
{{- with get $owned $name -}}
{{- fail (printf "schemaRegistry.settings: %s is set by the chart; see the value %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- $own := dict
  "listeners" "http://:8081"
  "rpc.listener" ":9095"
  "http.listener" ":9404"
  "kafkastore.bootstrap.servers" (include "ottla.bootstrap" .)
  "kafkastore.checkpoint.dir" "/var/lib/ottla"
  "zookeeper.connect" (printf "%s%s" (include "ottla.zookeeper.servers" .) .Values.zookeeper.chroot)
-}}
{{- $default := dict "kafkastore.topic.replication.factor" (min 3 (int .Values.broker.replicas)) "zookeeper.connection.timeout.ms" 120000 -}}
{{- if .Values.zookeeper.digest.existingSecret -}}
{{- $_ := set $default "zookeeper.set.acl" true -}}
{{- end -}}
{{- if eq (include "ottla.protocol" (list . "INTERNAL")) "SSL" -}}
{{- $_ := set $own "kafkastore.security.protocol" "SSL" -}}
{{- $_ := set $own "kafkastore.ssl.truststore.location" (printf "/etc/ottla-tls/%s" .Values.tls.authoritiesKey) -}}
{{- if ne .Values.tls.clientAuth "none" -}}
{{- $_ := set $own "kafkastore.ssl.keystore.location" "/run/ottla/keystore.pem" -}}
{{- end -}}
{{- end -}}
{{- include "ottla.properties" (list (include "ottla.rpcSettings" (list . .Values.schemaRegistry.settings) | fromYaml) $default .Values.schemaRegistry.settings $own) -}}
{{- end -}}

{{/* The files of the schema registry's ConfigMap. */}}
{{- define "ottla.registryFiles" -}}
schema-registry.properties: |
  {{- include "ottla.registryProperties" . | trim | nindent 2 }}
registry_prepare.py: |
  {{- .Files.Get "files/scripts/registry_prepare.py" | nindent 2 }}
{{- end -}}


{{/* What the chart says of a mirror maker itself, and the value by which it is changed. */}}
{{- define "ottla.mirrorOwnedSettings" -}}
clusters: mirrorMaker.sources
rpc.listener: mirrorMaker
http.listener: metrics
zookeeper.connect: zookeeper.connect
zookeeper.digest.username: zookeeper.digest.existingSecret
zookeeper.digest.password: zookeeper.digest.existingSecret
{{- end -}}

{{- define "ottla.mirrorProperties" -}}
{{- $mirror := .Values.mirrorMaker -}}
{{- $owned := include "ottla.mirrorOwnedSettings" . | fromYaml -}}
{{- range $name, $value := $mirror.settings -}}
{{- with get $owned $name -}}
{{- fail (printf "mirrorMaker.settings: %s is set by the chart; see the value %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- if not $mirror.sources -}}
{{- fail "mirrorMaker.enabled needs mirrorMaker.sources: which clusters are copied from" -}}
{{- end -}}
{{- if hasKey $mirror.sources $mirror.alias -}}
{{- fail (printf "mirrorMaker.sources: %s is this cluster; see the value mirrorMaker.alias" $mirror.alias) -}}
{{- end -}}
{{- $own := dict
  "clusters" (join "," (append (keys $mirror.sources | sortAlpha) $mirror.alias))
  "rpc.listener" ":9095"
  "http.listener" ":9404"
  "zookeeper.connect" (printf "%s%s" (include "ottla.zookeeper.servers" .) .Values.zookeeper.chroot)
  (printf "%s.bootstrap.servers" $mirror.alias) (include "ottla.bootstrap" .)
-}}
{{- $default := dict "zookeeper.connection.timeout.ms" 120000 -}}
{{- if .Values.zookeeper.digest.existingSecret -}}
{{- $_ := set $default "zookeeper.set.acl" true -}}
{{- end -}}
{{- if eq (include "ottla.protocol" (list . "INTERNAL")) "SSL" -}}
{{- $_ := set $own (printf "%s.security.protocol" $mirror.alias) "SSL" -}}
{{- $_ := set $own (printf "%s.ssl.truststore.location" $mirror.alias) (printf "/etc/ottla-tls/%s" .Values.tls.authoritiesKey) -}}
{{- if ne .Values.tls.clientAuth "none" -}}
{{- $_ := set $own (printf "%s.ssl.keystore.location" $mirror.alias) "/run/ottla/keystore.pem" -}}
{{- end -}}
{{- end -}}
{{- range $alias, $settings := $mirror.sources -}}
{{- $_ := set $default (printf "%s->%s.enabled" $alias $mirror.alias) true -}}
{{- range $name, $value := $settings -}}
{{- $_ := set $own (printf "%s.%s" $alias $name) $value -}}
{{- end -}}
{{- end -}}
{{- include "ottla.properties" (list (include "ottla.rpcSettings" (list . $mirror.settings) | fromYaml) $default $mirror.settings $own) -}}
{{- end -}}

{{/* The files of the mirror maker's ConfigMap. */}}
{{- define "ottla.mirrorFiles" -}}
mm2.properties: |
  {{- include "ottla.mirrorProperties" . | trim | nindent 2 }}
{{- end -}}


{{/* What the chart says of an audit counter itself, and the value by which it is changed. */}}
{{- define "ottla.auditOwnedSettings" -}}
bootstrap.servers: broker
rest.listener: auditCounter
rpc.listener: auditCounter
http.listener: metrics
audit.directory: auditCounter.persistence
security.protocol: tls.listeners
ssl.keystore.location: tls.existingSecret
ssl.truststore.location: tls.existingSecret
zookeeper.connect: zookeeper.connect
zookeeper.digest.username: zookeeper.digest.existingSecret
zookeeper.digest.password: zookeeper.digest.existingSecret
{{- end -}}

{{- define "ottla.auditProperties" -}}
{{- $owned := include "ottla.auditOwnedSettings" . | fromYaml -}}
{{- range $name, $value := .Values.auditCounter.settings -}}
{{- with get $owned $name -}}
{{- fail (printf "auditCounter.settings: %s is set by the chart; see the value %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- $own := dict
  "bootstrap.servers" (include "ottla.bootstrap" .)
  "rest.listener" ":8090"
  "rpc.listener" ":9095"
  "http.listener" ":9404"
  "audit.directory" "/var/lib/ottla/audit"
  "zookeeper.connect" (printf "%s%s" (include "ottla.zookeeper.servers" .) .Values.zookeeper.chroot)
-}}
{{- $default := dict "audit.tiers" "producer,broker" "zookeeper.connection.timeout.ms" 120000 -}}
{{- if .Values.zookeeper.digest.existingSecret -}}
{{- $_ := set $default "zookeeper.set.acl" true -}}
{{- end -}}
{{- if eq (include "ottla.protocol" (list . "INTERNAL")) "SSL" -}}
{{- $_ := set $own "security.protocol" "SSL" -}}
{{- $_ := set $own "ssl.truststore.location" (printf "/etc/ottla-tls/%s" .Values.tls.authoritiesKey) -}}
{{- if ne .Values.tls.clientAuth "none" -}}
{{- $_ := set $own "ssl.keystore.location" "/run/ottla/keystore.pem" -}}
{{- end -}}
{{- end -}}
{{- include "ottla.properties" (list (include "ottla.rpcSettings" (list . .Values.auditCounter.settings) | fromYaml) $default .Values.auditCounter.settings $own) -}}
{{- end -}}

{{/* The files of the audit counter's ConfigMap. */}}
{{- define "ottla.auditFiles" -}}
audit-counter.properties: |
  {{- include "ottla.auditProperties" . | trim | nindent 2 }}
{{- end -}}
