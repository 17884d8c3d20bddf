"""LangChain's own standard tests of chat models."""

import os

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]


class TestStandard(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {
            "model": "default", "base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0,
            "timeout": 120, "max_tokens": 48, "temperature": 0, "stream_usage": True,
        }  # fmt: skip

    @property
    def has_tool_choice(self):
        return True

    @property
    def supports_json_mode(self):
        return True

    @property
    def supports_image_inputs(self):
        return False
