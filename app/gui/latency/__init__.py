"""The latency view: its model, its drawings, and the export of the measurements."""
