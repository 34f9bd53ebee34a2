"""The settings: the dialog, the guide of the first start, models, and how a change takes effect."""
