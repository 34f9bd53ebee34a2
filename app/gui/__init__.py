"""The window: the only folder that imports PySide6 and pyqtgraph. Sends commands to `app.session`."""
