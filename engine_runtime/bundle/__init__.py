"""Model bundles: manifest, weights, converted checkpoints."""
