"""OpenAI's Responses API: its own form of a chat's request and answer.

Source: https://platform.openai.com/docs/api-reference/responses
"""
