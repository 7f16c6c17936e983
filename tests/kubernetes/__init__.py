"""The chart in a real cluster, whichever KUBECONFIG names. Minutes; `make k8s-test` runs them, in order."""
