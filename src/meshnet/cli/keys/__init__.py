"""The API keys of a gateway, kept as digests: `meshnet keys`."""
