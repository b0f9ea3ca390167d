"""Gradients are reduced over the ranks while the backward pass is still running."""
