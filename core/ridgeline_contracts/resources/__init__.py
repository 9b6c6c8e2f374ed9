"""The custom resources of `ridgeline.dev/v1alpha1`: frozen types, from which the CRDs and their reference are made."""
