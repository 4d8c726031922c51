// The JavaScript half: asks each case through the official `openai` or `@anthropic-ai/sdk` package, and writes down what that gave.
// Standard input: {"url", "key", "cases"}; standard output: name -> {"reply"}, {"chunks"} or {"error"}.

import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { url, key, cases } = JSON.parse(readFileSync(0, "utf-8"));

async function create(resource, request) {
  const reply = await resource.create(request);
  if (!request.stream) return { reply };
  const chunks = [];
  for await (const chunk of reply) chunks.push(chunk);
  return { chunks };
}

const calls = {
  chat: (client, request) => create(client.chat.completions, request),
  completion: (client, request) => create(client.completions, request),
  chat_stream_helper: async (client, request) => ({
    reply: await client.chat.completions.stream(request).finalChatCompletion(),
  }),
  response: (client, request) => create(client.responses, request),
  response_stream_helper: async (client, request) => ({
    reply: await client.responses.stream(request).finalResponse(),
  }),
  models: async (client) => {
    const page = await client.models.list();
    return { reply: { object: page.object, data: page.data } };
  },
  model: async (client, request) => ({ reply: await client.models.retrieve(request.model) }),
};

const messageCalls = {
  message: (client, request) => client.messages.create(request),
  message_stream_helper: (client, request) => client.messages.stream(request).finalMessage(),
  message_tokens: (client, request) => client.messages.countTokens(request),
  message_models: async (client) => ({ data: (await client.models.list()).data }),
};

async function observeMessage({ call, key: own, request }) {
  const client = new Anthropic({ baseURL: url, apiKey: own ?? key, maxRetries: 0, timeout: 60_000 });
  try {
    return { reply: await messageCalls[call](client, request) };
  } catch (error) {
    if (!(error instanceof Anthropic.APIError)) throw error;
    const { status, type, requestID } = error;
    return { error: { class: error.constructor.name, status, type, request_id: requestID } };
  }
}

async function observe({ call, key: own, request }) {
  if (call in messageCalls) return observeMessage({ call, key: own, request });
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: own ?? key, maxRetries: 0, timeout: 60_000 });
  try {
    return await calls[call](client, request);
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    const { status, param, code, type } = error;
    return { error: { class: error.constructor.name, status, param, code, type } };
  }
}

const observations = {};
for (const one of cases) observations[one.name] = await observe(one);
process.stdout.write(JSON.stringify(observations));
