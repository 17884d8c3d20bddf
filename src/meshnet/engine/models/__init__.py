"""Where models come from: names, hub ids, GGUF files and directories become local directories."""
