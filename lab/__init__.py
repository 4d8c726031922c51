"""What measures, plays and trains around the product, in no wheel: testbed, benchmarks, training."""
