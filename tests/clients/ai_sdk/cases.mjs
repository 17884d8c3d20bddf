import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const at = (apiKey) =>
  createOpenAICompatible({
    name: "meshnet",
    baseURL: `${process.env.MESHNET_SUITE_URL}/v1`,
    apiKey,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
const model = at(process.env.MESHNET_SUITE_KEY)("default");
const prompt = "What is the capital of France?";
const ask = { model, prompt, maxOutputTokens: 12, maxRetries: 0, temperature: 0 };

const refused = async (changes) => {
  try {
    await generateText({ ...ask, ...changes });
    return null;
  } catch (error) {
    return error.statusCode;
  }
};

const cases = {
  async chat() {
    const { text, usage } = await generateText(ask);
    return { text, tokens: usage.outputTokens };
  },
  async streamed_chat() {
    const pieces = [];
    for await (const piece of streamText(ask).textStream) pieces.push(piece);
    return { text: pieces.join(""), pieces: pieces.length };
  },
  async structured_output() {
    const schema = z.object({ right: z.boolean() });
    return (await generateObject({ ...ask, schema, maxOutputTokens: 40 })).object;
  },
  async tool_calls() {
    const weather = tool({ inputSchema: z.object({ town: z.string().max(12) }) });
    const toolChoice = { type: "tool", toolName: "weather" };
    const told = await generateText({
      ...ask, tools: { weather }, toolChoice, maxOutputTokens: 60,
    });
    return { name: told.toolCalls[0].toolName, input: told.toolCalls[0].input };
  },
  async errors_of_their_kinds() {
    return {
      "wrong key": await refused({ model: at("wrong")("default") }),
      nobody: await refused({ model: at(process.env.MESHNET_SUITE_KEY)("nobody") }),
      temperature: await refused({ temperature: 9 }),
    };
  },
};

console.log(JSON.stringify(await cases[process.argv[2]]()));
