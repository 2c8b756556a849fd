"""Pure JAX: stages, chain, draw, unseen tail, objective; arrays in, arrays out."""
