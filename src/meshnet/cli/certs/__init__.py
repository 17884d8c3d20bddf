"""The mesh's own certificate authority: `meshnet certs`."""
