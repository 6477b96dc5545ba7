"""The fields of what is rendered for Kubernetes, cut from the published schemas: every name at the levels we touch.

Origin of the first table: KubeRay v1.7.0, the custom resource definitions `ray.io/v1` as in its docs/reference/api.md
(ray-project/kuberay, Apache-2.0); of the second: the JSON schema of the Kubernetes API v1.37 (kubernetes/kubernetes,
Apache-2.0). Only names and types are kept. What we do not render is `any`: known by name and not looked into.

`name:type`, `!` after a name that must be there. Types: string, integer, number, boolean, quantity, map (of strings),
quantities (a map of them), any, `=a|b` (one of these words), `[T]` (a list), or another entry.
"""

RAY = {
    "RayJob": "apiVersion!:=ray.io/v1 kind!:=RayJob metadata!:ObjectMeta spec!:RayJobSpec status:any",
    "RayCluster": "apiVersion!:=ray.io/v1 kind!:=RayCluster metadata!:ObjectMeta spec!:RayClusterSpec status:any",
    "RayJobSpec": (
        "activeDeadlineSeconds:integer backoffLimit:integer clusterSelector:map deletionStrategy:DeletionStrategy "
        "entrypoint:string entrypointNumCpus:number entrypointNumGpus:number entrypointResources:string jobId:string "
        "managedBy:=ray.io/kuberay-operator|kueue.x-k8s.io/multikueue metadata:map preRunningDeadlineSeconds:integer "
        "rayClusterSpec:RayClusterSpec runtimeEnvYAML:string shutdownAfterJobFinishes:boolean "
        "submissionMode:=K8sJobMode|HTTPMode|InteractiveMode|SidecarMode submitterConfig:SubmitterConfig "
        "submitterPodTemplate:PodTemplateSpec suspend:boolean ttlSecondsAfterFinished:integer"
    ),
    "SubmitterConfig": "backoffLimit:integer",
    "DeletionStrategy": "deletionRules:[any] onFailure:any onSuccess:any",
    "RayClusterSpec": (
        "authOptions:AuthOptions autoscalerOptions:AutoscalerOptions enableInTreeAutoscaling:boolean "
        "gcsFaultToleranceOptions:any headGroupSpec!:HeadGroupSpec headServiceAnnotations:map "
        "historyServerOptions:any managedBy:=ray.io/kuberay-operator|kueue.x-k8s.io/multikueue networkPolicy:any "
        "rayVersion:string suspend:boolean tlsOptions:any upgradeStrategy:any workerGroupSpecs:[WorkerGroupSpec]"
    ),
    "AuthOptions": "enableK8sTokenAuth:boolean mode:=disabled|token secretName:string",
    "AutoscalerOptions": (
        "args:[string] command:[string] env:[EnvVar] envFrom:[any] idleTimeoutSeconds:integer image:string "
        "imagePullPolicy:string resources:ResourceRequirements securityContext:any "
        "upscalingMode:=Default|Aggressive|Conservative version:=v1|v2 volumeMounts:[VolumeMount]"
    ),
    "HeadGroupSpec": (
        "enableIngress:boolean headService:any ingressOptions:any labels:map rayStartParams:map resources:map "
        "serviceType:string template!:PodTemplateSpec"
    ),
    "WorkerGroupSpec": (
        "groupName!:string idleTimeoutSeconds:integer labels:map maxReplicas:integer minReplicas:integer "
        "numOfHosts:integer priority:integer rayStartParams:map replicas:integer resources:map scaleStrategy:any "
        "suspend:boolean template!:PodTemplateSpec"
    ),
}
KUBERNETES = {
    "ObjectMeta": (
        "annotations:map creationTimestamp:any deletionGracePeriodSeconds:integer deletionTimestamp:any "
        "finalizers:[string] generateName:string generation:integer labels:map managedFields:[any] name:string "
        "namespace:string ownerReferences:[any] resourceVersion:string selfLink:string uid:string"
    ),
    "PodTemplateSpec": "metadata:ObjectMeta spec:PodSpec",
    "PodSpec": (
        "activeDeadlineSeconds:integer affinity:any automountServiceAccountToken:boolean containers!:[Container] "
        "dnsConfig:any dnsPolicy:string enableServiceLinks:boolean ephemeralContainers:[any] "
        "evictionResponders:[any] hostAliases:[any] hostIPC:boolean hostNetwork:boolean hostPID:boolean "
        "hostUsers:boolean hostname:string hostnameOverride:string imagePullSecrets:[any] initContainers:[Container] "
        "nodeName:string nodeSelector:map os:any overhead:quantities preemptionPolicy:string priority:integer "
        "priorityClassName:string readinessGates:[any] resourceClaims:[any] resources:ResourceRequirements "
        "restartPolicy:string runtimeClassName:string schedulerName:string schedulingGates:[any] schedulingGroup:any "
        "securityContext:any serviceAccount:string serviceAccountName:string setHostnameAsFQDN:boolean "
        "shareProcessNamespace:boolean subdomain:string terminationGracePeriodSeconds:integer "
        "tolerations:[Toleration] topologySpreadConstraints:[any] volumes:[Volume]"
    ),
    "Container": (
        "args:[string] command:[string] env:[EnvVar] envFrom:[any] image:string imagePullPolicy:string "
        "lifecycle:Lifecycle livenessProbe:any name!:string ports:[ContainerPort] readinessProbe:any "
        "resizePolicy:[any] resources:ResourceRequirements restartPolicy:string restartPolicyRules:[any] "
        "securityContext:any startupProbe:any stdin:boolean stdinOnce:boolean terminationMessagePath:string "
        "terminationMessagePolicy:string tty:boolean volumeDevices:[any] volumeMounts:[VolumeMount] "
        "workingDir:string"
    ),
    "EnvVar": "name!:string value:string valueFrom:EnvVarSource",
    "EnvVarSource": (
        "configMapKeyRef:any fieldRef:any fileKeyRef:any resourceFieldRef:any secretKeyRef:SecretKeySelector"
    ),
    "SecretKeySelector": "key!:string name:string optional:boolean",
    "ResourceRequirements": "claims:[any] limits:quantities requests:quantities",
    "VolumeMount": (
        "bindMountOptions:[string] mountPath!:string mountPropagation:string name!:string readOnly:boolean "
        "recursiveReadOnly:string subPath:string subPathExpr:string"
    ),
    "Volume": (
        "awsElasticBlockStore:any azureDisk:any azureFile:any cephfs:any cinder:any configMap:ConfigMapVolumeSource "
        "csi:any downwardAPI:any emptyDir:any ephemeral:any fc:any flexVolume:any flocker:any gcePersistentDisk:any "
        "gitRepo:any glusterfs:any hostPath:any image:any iscsi:any name!:string nfs:any "
        "persistentVolumeClaim:PersistentVolumeClaimVolumeSource photonPersistentDisk:any portworxVolume:any "
        "projected:any quobyte:any rbd:any scaleIO:any secret:any storageos:any vsphereVolume:any"
    ),
    "PersistentVolumeClaimVolumeSource": "claimName!:string readOnly:boolean",
    "ConfigMapVolumeSource": "defaultMode:integer defaultUser:integer items:[any] name:string optional:boolean",
    "Lifecycle": "postStart:LifecycleHandler preStop:LifecycleHandler stopSignal:string",
    "LifecycleHandler": "exec:ExecAction httpGet:any sleep:any tcpSocket:any",
    "ExecAction": "command:[string]",
    "Toleration": "effect:string key:string operator:string tolerationSeconds:integer value:string",
    "ConfigMap": "apiVersion!:=v1 binaryData:map data:map immutable:boolean kind!:=ConfigMap metadata!:ObjectMeta",
    "ContainerPort": "containerPort!:integer hostIP:string hostPort:integer name:string protocol:string",
}
