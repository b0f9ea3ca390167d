"""Gradients reduced over the ranks while the backward pass goes on."""
