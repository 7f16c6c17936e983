{{/* What no schema can say: values that contradict each other. Included once, by the brokers' StatefulSet. */}}

{{/* A duration such as 1m30s. */}}
{{- define "ottla.seconds" -}}
{{- $seconds := 0 -}}
{{- range regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $seconds = add $seconds (mul (int (regexFind "[0-9]+" .)) (get (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]" .))) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{- define "ottla.checkValues" -}}
{{- $values := .Values -}}
{{- $external := $values.externalAccess -}}
{{- $replicas := int $values.broker.replicas -}}
{{- $tls := include "ottla.tls.secret" . -}}

{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "ottla.fullname" .)) -}}
{{- fail (printf "%s is no name of a Service, which is letters, digits and hyphens after a letter: set fullnameOverride" (include "ottla.fullname" .)) -}}
{{- end -}}
{{- if and $values.zookeeper.enabled $values.zookeeper.connect -}}
{{- fail "zookeeper.connect names servers that are there already: set zookeeper.enabled=false with it" -}}
{{- end -}}
{{- if not (or $values.zookeeper.enabled $values.zookeeper.connect) -}}
{{- fail "zookeeper.enabled is false: say in zookeeper.connect where ZooKeeper is" -}}
{{- end -}}
{{- if contains "/" (default "" $values.zookeeper.connect) -}}
{{- fail "zookeeper.connect: the path belongs into zookeeper.chroot" -}}
{{- end -}}

{{- /* Java would be killed when its heap has grown, which may be weeks later. */ -}}
{{- $memory := dig "limits" "memory" "" (default dict $values.zookeeper.resources) | toString -}}
{{- if and $values.zookeeper.enabled (regexMatch "^[0-9]+[MG]i$" $memory) -}}
{{- if lt (int (mul (trimSuffix "Mi" $memory | trimSuffix "Gi") (ternary 1024 1 (hasSuffix "Gi" $memory)))) (int (add $values.zookeeper.heapMegabytes 128)) -}}
{{- fail (printf "zookeeper.resources.limits.memory: %s does not leave 128Mi beside zookeeper.heapMegabytes, which is %v" $memory $values.zookeeper.heapMegabytes) -}}
{{- end -}}
{{- end -}}
{{- if gt (int (add $values.broker.drain.timeoutSeconds 30)) (int $values.broker.terminationGracePeriodSeconds) -}}
{{- fail "broker.terminationGracePeriodSeconds must leave 30 s beside broker.drain.timeoutSeconds, for a clean shutdown" -}}
{{- end -}}
{{- if and $values.broker.rack.fromNode $values.broker.rack.values -}}
{{- fail "broker.rack: either fromNode or values" -}}
{{- end -}}

{{- /* The Prometheus operator would leave the whole ServiceMonitor out, and say so in its own log only. */ -}}
{{- $monitor := $values.metrics.serviceMonitor -}}
{{- if and $monitor.enabled (gt (int (include "ottla.seconds" $monitor.scrapeTimeout)) (int (include "ottla.seconds" $monitor.interval))) -}}
{{- fail (printf "metrics.serviceMonitor.scrapeTimeout is %s, and a scrape may not take longer than the interval of %s" $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}

{{- if and $monitor.enabled $values.metrics.prometheusRule.enabled (ne $monitor.path "/metrics") -}}
{{- fail (printf "metrics.serviceMonitor.path is %s, and the rules go by /metrics: AllBrokersDown would fire for good" $monitor.path) -}}
{{- end -}}

{{- $rules := $values.metrics.prometheusRule -}}
{{- if and $rules.enabled (not $monitor.enabled) (not (has "AllBrokersDown" (default list $rules.disabledAlerts))) -}}
{{- fail "metrics.prometheusRule is enabled and metrics.serviceMonitor is not: AllBrokersDown would fire for good where no one scrapes the brokers; where another monitor does, name it in metrics.prometheusRule.disabledAlerts" -}}
{{- end -}}

{{- if and $values.tls.existingSecret $values.tls.certManager.enabled -}}
{{- fail "tls.certManager makes the Secret itself: leave tls.existingSecret empty" -}}
{{- end -}}
{{- if and $values.tls.certManager.enabled (not $values.tls.certManager.issuerRef) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef" -}}
{{- end -}}
{{- if and (not $tls) (ne $values.tls.clientAuth "none") -}}
{{- fail "tls.clientAuth needs a certificate: tls.existingSecret or tls.certManager" -}}
{{- end -}}

{{- if $external.enabled -}}
{{- if and $external.nodePorts (eq $external.type "NodePort") (lt (len $external.nodePorts) $replicas) -}}
{{- fail (printf "externalAccess.nodePorts has %d ports for %d brokers" (len $external.nodePorts) $replicas) -}}
{{- end -}}
{{- if and $external.hosts (eq $external.type "LoadBalancer") (lt (len $external.hosts) $replicas) -}}
{{- fail (printf "externalAccess.hosts has %d hosts for %d brokers, and each has a load balancer of its own" (len $external.hosts) $replicas) -}}
{{- end -}}
{{- if and (gt (len (default list $external.hosts)) 1) (lt (len $external.hosts) $replicas) -}}
{{- fail (printf "externalAccess.hosts has %d hosts for %d brokers: give one for each, or one for all" (len $external.hosts) $replicas) -}}
{{- end -}}
{{- if and $external.loadBalancerIPs (lt (len $external.loadBalancerIPs) $replicas) -}}
{{- fail (printf "externalAccess.loadBalancerIPs has %d addresses for %d brokers" (len $external.loadBalancerIPs) $replicas) -}}
{{- end -}}
{{- end -}}

{{- /* The API server refuses that when the ConfigMap has the other `log.dirs` already, and a broker would start again with those. */ -}}
{{- if .Release.IsUpgrade -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-broker" (include "ottla.fullname" .)) -}}
{{- $there := len (default list .spec.volumeClaimTemplates) -}}
{{- $wanted := ternary (int $values.broker.persistence.volumes) 0 $values.broker.persistence.enabled -}}
{{- if ne $there $wanted -}}
{{- fail (printf "broker.persistence: each broker has %d volumes and cannot have %d in place: those that there are would be left, with their logs, or others be missing" $there $wanted) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A ZooKeeper that grows in place can elect two new, empty servers over the one that has the data. */ -}}
{{- if and .Release.IsUpgrade $values.zookeeper.enabled -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-zookeeper" (include "ottla.fullname" .)) -}}
{{- if ne (int .spec.replicas) (int $values.zookeeper.replicas) -}}
{{- fail (printf "zookeeper.replicas is %d and cannot become %d in place: new, empty servers could outvote those that have the data" (int .spec.replicas) (int $values.zookeeper.replicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Under another name Helm takes the brokers and ZooKeeper away, and starts others on volumes of their own. */ -}}
{{- if .Release.IsUpgrade -}}
{{- $name := printf "%s-broker" (include "ottla.fullname" .) -}}
{{- range (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items -}}
{{- $labels := default dict .metadata.labels -}}
{{- $isOfRelease := and (eq (dig "app.kubernetes.io/instance" "" $labels) $.Release.Name) (regexMatch (printf "^%s-[0-9]" $.Chart.Name) (dig "helm.sh/chart" "" $labels)) -}}
{{- if and $isOfRelease (eq (dig "app.kubernetes.io/component" "" $labels) "broker") (ne .metadata.name $name) -}}
{{- fail (printf "the brokers of this release are %s and cannot become %s in place, which would begin without any data: see nameOverride and fullnameOverride" .metadata.name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Brokers of other ids, or of another place in ZooKeeper, are none of those that hold the partitions. */ -}}
{{- if .Release.IsUpgrade -}}
{{- with lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-broker" (include "ottla.fullname" .)) -}}
{{- $id := int (get (get .data "pod.json" | fromJson) "id_base") -}}
{{- if ne $id (int $values.broker.idBase) -}}
{{- fail (printf "broker.idBase is %d and cannot become %d in place: no broker would be one that partitions have as a replica" $id (int $values.broker.idBase)) -}}
{{- end -}}
{{- $connect := regexFind "(?m)^zookeeper\\.connect=.*$" (get .data "server.properties") | trimPrefix "zookeeper.connect=" -}}
{{- $servers := regexFind "^[^/]*" $connect -}}
{{- $chroot := trimPrefix $servers $connect -}}
{{- if ne $chroot (default "" $values.zookeeper.chroot) -}}
{{- fail (printf "zookeeper.chroot is '%s' and cannot become '%s' in place: the brokers would find an empty cluster there" $chroot (default "" $values.zookeeper.chroot)) -}}
{{- end -}}
{{- $wanted := include "ottla.zookeeper.servers" $ -}}
{{- $isOurs := and $values.zookeeper.enabled (lookup "apps/v1" "StatefulSet" $.Release.Namespace (printf "%s-zookeeper" (include "ottla.fullname" $))) -}}
{{- $isLeft := false -}}
{{- range splitList "," $wanted -}}
{{- $isLeft = or $isLeft (has . (splitList "," $servers)) -}}
{{- end -}}
{{- if not (or $isOurs $isLeft) -}}
{{- fail (printf "zookeeper.connect: none of the ZooKeeper servers %s is left in %s: the brokers would find an empty cluster there; where it is the same ensemble, name both in one upgrade and the new ones alone in the next" $servers $wanted) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
