{{/* Names, labels and addresses that several objects share. */}}

{{- define "ottla.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects pods may never change in the life of a StatefulSet. */}}
{{- define "ottla.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ottla.labels" -}}
{{ include "ottla.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels of an object that others look for by labels of a person's: (list $ labels). Theirs go before; a key stands once. */}}
{{- define "ottla.labelsAnd" -}}
{{- toYaml (merge (dict) (index . 1) (include "ottla.labels" (index . 0) | fromYaml)) -}}
{{- end -}}

{{/* Annotations of pods: (list $ container template podAnnotations). The checksum of that template's files: other settings are another pod. */}}
{{- define "ottla.podAnnotations" -}}
{{- $checksum := dict "checksum/configuration" (include (index . 2) (index . 0) | sha256sum) -}}
{{- toYaml (merge $checksum (index . 3) (dict "kubectl.kubernetes.io/default-container" (index . 1))) -}}
{{- end -}}

{{/*
Labels of pods: (list $ "broker" podLabels). Theirs go before `labels`, and before both what selects them. The chart's version is not
among them: another one would restart ZooKeeper, whose image is the same.
*/}}
{{- define "ottla.podLabels" -}}
{{- $root := index . 0 -}}
{{- $selected := merge (dict "app.kubernetes.io/component" (index . 1)) (include "ottla.selector" $root | fromYaml) -}}
{{- if has (index . 1) (list "audit-counter" "load" "mirror-maker") -}}
{{- $_ := set $selected (include "ottla.clientLabel" $root) "true" -}}
{{- end -}}
{{- toYaml (merge $selected (index . 2) (omit (include "ottla.labels" $root | fromYaml) "app.kubernetes.io/version" "helm.sh/chart")) -}}
{{- end -}}

{{/* Pods that may reach the brokers. */}}
{{- define "ottla.clientLabel" -}}
{{ include "ottla.fullname" . }}-client
{{- end -}}

{{- define "ottla.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ottla.fullname" .) .Values.serviceAccount.name | quote -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name | quote -}}
{{- end -}}
{{- end -}}

{{- define "ottla.image" -}}
{{- with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .defaultTag }}{{ end }}
{{- end -}}

{{- define "ottla.broker.image" -}}
{{- include "ottla.image" (dict "image" .Values.image "defaultTag" .Chart.AppVersion) -}}
{{- end -}}

{{- define "ottla.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The domain of the brokers' own names: POD.<this>. */}}
{{- define "ottla.broker.domain" -}}
{{ include "ottla.fullname" . }}-broker-headless.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* The same of the schema registry's nodes. Its objects are `-registry`: a StatefulSet's name may have 52 characters. */}}
{{- define "ottla.registry.domain" -}}
{{ include "ottla.fullname" . }}-registry-headless.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "ottla.bootstrap" -}}
{{ include "ottla.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:9092
{{- end -}}

{{- define "ottla.zookeeper.servers" -}}
{{- if .Values.zookeeper.enabled -}}
{{- $domain := printf "%s-zookeeper-headless.%s.svc.%s" (include "ottla.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- $servers := list -}}
{{- range $ordinal := until (int .Values.zookeeper.replicas) -}}
{{- $servers = append $servers (printf "%s-zookeeper-%d.%s:2181" (include "ottla.fullname" $) $ordinal $domain) -}}
{{- end -}}
{{- join "," $servers -}}
{{- else -}}
{{- .Values.zookeeper.connect -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the brokers' certificate; empty without TLS. */}}
{{- define "ottla.tls.secret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{ include "ottla.fullname" . }}-tls
{{- else -}}
{{- default "" .Values.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* "SSL" or "PLAINTEXT" of a listener: (list $ "INTERNAL"). */}}
{{- define "ottla.protocol" -}}
{{- $root := index . 0 -}}
{{- if and (include "ottla.tls.secret" $root) (has (index . 1) $root.Values.tls.listeners) -}}SSL{{- else -}}PLAINTEXT{{- end -}}
{{- end -}}

{{/* The same of the mirror maker's gRPC, where its settings may say otherwise. */}}
{{- define "ottla.mirror.rpcProtocol" -}}
{{- get (default dict .Values.mirrorMaker.settings) "rpc.security.protocol" | default (include "ottla.protocol" (list . "RPC")) | upper -}}
{{- end -}}

{{/* Whether a service around the log has the certificate: it shows it to brokers, to operators, or knows their authorities. */}}
{{- define "ottla.tls.isOfServices" -}}
{{- if or (eq (include "ottla.protocol" (list . "INTERNAL")) "SSL") (eq (include "ottla.protocol" (list . "RPC")) "SSL") -}}true{{- end -}}
{{- end -}}

{{/* Whether it shows it, so that an init container makes a PEM file of key and certificate. */}}
{{- define "ottla.tls.isShownByServices" -}}
{{- $toBrokers := and (eq (include "ottla.protocol" (list . "INTERNAL")) "SSL") (ne .Values.tls.clientAuth "none") -}}
{{- if or $toBrokers (eq (include "ottla.protocol" (list . "RPC")) "SSL") -}}true{{- end -}}
{{- end -}}

{{/* Whether the init container of a broker asks the API server for anything. */}}
{{- define "ottla.asksForNodes" -}}
{{- $external := .Values.externalAccess -}}
{{- if or .Values.broker.rack.fromNode (and $external.enabled (eq $external.type "NodePort") $external.nodeExternalAddress) -}}true{{- end -}}
{{- end -}}

{{- define "ottla.asksForServices" -}}
{{- $external := .Values.externalAccess -}}
{{- if $external.enabled -}}
{{- if or (and (eq $external.type "NodePort") (not $external.nodePorts)) (and (eq $external.type "LoadBalancer") (not $external.hosts)) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ottla.storageClass" -}}
{{- if eq . "-" }}
storageClassName: ""
{{- else if . }}
storageClassName: {{ . | quote }}
{{- end }}
{{- end -}}
