"""LangChain's own standard tests of chat models."""

import os

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]


class Strict(ChatOpenAI):
    """Its schemas allow no property but their own: a small model adds others where it may."""

    def bind_tools(self, tools, **options):
        return super().bind_tools(tools, **{"strict": True} | options)


class TestStandard(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return Strict

    @property
    def chat_model_params(self):
        return {
            "model": "default", "base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0,
            "timeout": 120, "max_tokens": 200, "temperature": 0, "frequency_penalty": 0.6,
            "stream_usage": True,
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

    @pytest.mark.xfail(reason="no schema is sent, and SmolLM2-135M does not follow the words")
    def test_json_mode(self, model):
        super().test_json_mode(model)

    @pytest.mark.xfail(reason="no call is forced, and SmolLM2-135M makes none of its own")
    def test_agent_loop(self, model):
        super().test_agent_loop(model)
