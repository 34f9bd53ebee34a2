"""Full-duplex bench: simulated users talk to a real session, and both channels are measured."""
