"""What the MCP server of the SDK answers about tools, prompts and resources, as types of the SDK."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import mcp_types as types
from attrs import frozen
from mcp.shared.exceptions import MCPError

from handlers.mcp import resources
from handlers.mcp.derived_tools import Tool
from handlers.mcp.prompts import PROMPTS, Prompt
from handlers.mcp.resources import ResourceTemplate
from handlers.mcp.results import ToolResult
from handlers.mcp.toolbox import Toolbox, ToolCaller
from models.errors import NotFound, Problem


@frozen
class Answers:
    """The methods of the protocol; each takes the SDK's context of a request and its parameters."""

    _toolbox: Toolbox
    _caller_of: Callable[[Any], ToolCaller]
    """Returns the caller of a transport's request."""

    async def list_tools(self, context: Any, _: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(tool) for tool in self._tools(context)])

    async def call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        caller = self._caller_of(context.request)
        try:
            tool = self._toolbox.find(params.name, caller.selection)
        except NotFound as problem:
            raise MCPError(types.INVALID_PARAMS, problem.message) from None
        return _result(await self._toolbox.call(tool, params.arguments or {}, caller))

    async def list_prompts(self, context: Any, _: Any) -> types.ListPromptsResult:
        """Those whose tools the caller may call."""
        found = {tool.name for tool in self._tools(context)}
        return types.ListPromptsResult(prompts=[_prompt(one) for one in PROMPTS if found.issuperset(one.tools)])

    async def get_prompt(self, context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        prompt = next((one for one in PROMPTS if one.name == params.name), None)
        try:
            if prompt is None:
                raise NotFound(f"there is no prompt {params.name[:100]}")
            text = prompt.filled(params.arguments or {})
        except Problem as problem:
            raise MCPError(types.INVALID_PARAMS, problem.message) from None
        content = types.TextContent(type="text", text=text)
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    async def list_resources(self, context: Any, _: Any) -> types.ListResourcesResult:
        """None by itself: there may be thousands. The templates have their addresses."""
        return types.ListResourcesResult(resources=[])

    async def list_resource_templates(self, context: Any, _: Any) -> types.ListResourceTemplatesResult:
        found = {tool.name for tool in self._tools(context)}
        listed = [_template(one) for one in resources.TEMPLATES if one.tool in found]
        return types.ListResourceTemplatesResult(resource_templates=listed)

    async def read_resource(self, context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        caller = self._caller_of(context.request)
        try:
            template, arguments = resources.find(params.uri)
            result = await self._toolbox.call(self._toolbox.find(template.tool, caller.selection), arguments, caller)
        except NotFound as problem:
            raise MCPError(types.INVALID_PARAMS, problem.message) from None
        if result.is_error:
            raise MCPError(types.INVALID_PARAMS, result.text)
        content = types.TextResourceContents(uri=params.uri, mime_type=template.media_type, text=result.text)
        return types.ReadResourceResult(contents=[content])

    def _tools(self, context: Any) -> list[Tool]:
        return list(self._toolbox.list(self._caller_of(context.request)))


def _tool(tool: Tool) -> types.Tool:
    is_destructive = tool.is_destructive if tool.is_mutating else None  # it says nothing of a tool that only reads
    hints = types.ToolAnnotations(read_only_hint=not tool.is_mutating, destructive_hint=is_destructive)
    return types.Tool(name=tool.name, description=tool.about, input_schema=dict(tool.schema), annotations=hints)


def _prompt(prompt: Prompt) -> types.Prompt:
    arguments = [
        types.PromptArgument(name=name, description=about, required=True) for name, about in prompt.arguments.items()
    ]
    return types.Prompt(name=prompt.name, title=prompt.title, arguments=arguments)


def _template(template: ResourceTemplate) -> types.ResourceTemplate:
    return types.ResourceTemplate(
        name=template.name, uri_template=template.address, description=template.about, mime_type=template.media_type
    )


def _result(result: ToolResult) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=result.text)]
    content += [types.TextContent(type="text", text=f"warning: {line}") for line in result.warnings]
    if result.blob is not None:
        blob = types.BlobResourceContents(
            uri=f"pilothouse://charts/{result.blob.name}",
            mime_type=result.blob.media_type,
            blob=base64.b64encode(result.blob.content).decode(),
        )
        content.append(types.EmbeddedResource(type="resource", resource=blob))
    return types.CallToolResult(content=content, is_error=result.is_error)
