"""Programs that measure OpenSLED and that no verb needs; no wheel holds them."""
