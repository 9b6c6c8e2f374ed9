"""The operator: pure planning and rendering, with Kopf handlers as a thin shell around them."""
