"""The server that hears the user, in words. GUI thread."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.gui.common.plain_text import clean
from app.server_address import AddressError, parse_address

_LONGEST_NAME = 60


def server_in_words(server: str) -> str:
    """Host and port of the address of a server, and whether others on the way can listen."""
    try:
        address = parse_address(server)
    except AddressError:
        return clean(server, _LONGEST_NAME)
    if address.is_loopback:
        words = QCoreApplication.translate("Destination", "%1 (this computer)")
    elif address.is_encrypted:
        words = QCoreApplication.translate("Destination", "%1 (TLS)", "the connection is encrypted")
    else:
        words = QCoreApplication.translate("Destination", "%1 (not encrypted)")
    return words.replace("%1", clean(address.name, _LONGEST_NAME))
