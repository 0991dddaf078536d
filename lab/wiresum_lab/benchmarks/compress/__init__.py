"""Training with compressed gradients, beside fp32."""
