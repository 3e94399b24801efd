"""Drives `warpsmith mcp` with the official client, and prints what it saw as one JSON object."""

import json
import os
import sys
import time
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

FLAGS = ["--target", "cpu", "--no-compile", "--profile", "rl", "-q"]
NOISY_ROUNDS = 6


def server(binary: str, task: Path, more: list[str] | None = None) -> StdioServerParameters:
    arguments = ["mcp", str(task), "--workspace", str(task.parent / "workspace"), *FLAGS, *(more or [])]
    return StdioServerParameters(command=binary, args=arguments, env=dict(os.environ))


def seen(result) -> dict:
    return {
        "failed": result.is_error,
        "text": "".join(block.text for block in result.content),
        "structured": result.structured_content,
    }


async def patiently(session: ClientSession, tool: str) -> dict:
    """A machine that the judge calls too noisy gets another chance, later and later."""
    for tries in range(NOISY_ROUNDS):
        await anyio.sleep(5 * tries)
        found = seen(await session.call_tool(tool))
        failure = (found["structured"] or {}).get("failure")
        if failure is None or failure["code"] != "noisy_machine":
            break
    return found


async def look_around(session: ClientSession) -> dict:
    return {
        "tools": {tool.name: tool.input_schema for tool in (await session.list_tools()).tools},
        "prompts": [prompt.name for prompt in (await session.list_prompts()).prompts],
        "prompt": (await session.get_prompt("optimize")).messages[0].content.text,
        "resources": [str(resource.uri) for resource in (await session.list_resources()).resources],
        "resource": (await session.read_resource("warpsmith://skill")).contents[0].text,
    }


async def compile_while_pinging(session: ClientSession) -> dict:
    """A tool at work must not keep the protocol waiting."""
    order = []

    async def ping() -> None:
        await anyio.sleep(0.2)
        await session.send_ping()
        order.append("ping")

    async with anyio.create_task_group() as group:
        group.start_soon(ping)
        found = seen(await session.call_tool("compile"))
        order.append("compile")
    return {**found, "order": order}


async def work(session: ClientSession, folder: Path) -> dict:
    """A broken kernel, a mended one, a result, a call that is given up."""
    saw = {"nothing": seen(await session.call_tool("compile"))}
    workspace = folder / "workspace"
    model_new = workspace / "model_new.py"

    model_new.symlink_to(folder / "model_new.py")
    saw["link"] = seen(await session.call_tool("compile"))
    model_new.unlink()
    model_new.write_text((folder / "model_new.py").read_text())

    kernel = (folder / "kernel.cpp").read_text()
    place = workspace / "kernels" / "scale_relu.cpp"
    place.write_text(kernel.replace("return 0;", "return 0"))
    saw["broken"] = await compile_while_pinging(session)

    place.write_text(kernel)
    signs = []

    async def sign(progress: float, _total: float | None, message: str | None) -> None:
        signs.append([progress, message])

    saw["verify"] = seen(await session.call_tool("verify", progress_callback=sign))
    saw["signs"] = signs
    saw["profile"] = seen(await session.call_tool("profile", {"original": True}))
    saw["arguments"] = seen(await session.call_tool("profile", {"orignal": True}))
    saw["judge"] = await patiently(session, "judge")
    saw["submit"] = await patiently(session, "submit")

    place.write_text(kernel.replace("return 0;", "for (volatile int forever = 1; forever;) {}"))
    with anyio.move_on_after(2) as scope:
        await session.call_tool("submit")
    saw["cancelled"] = scope.cancelled_caught
    place.write_text(kernel)
    saw["afterwards"] = seen(await session.call_tool("verify"))
    saw["submitted"] = sorted(path.name for path in (workspace / "submitted").iterdir())

    try:
        await session.call_tool("fly")
    except MCPError as error:
        saw["unknown"] = {"code": error.error.code, "message": error.error.message}
    return saw


async def whole(binary: str, task: Path) -> dict:
    begun = time.monotonic()
    async with stdio_client(server(binary, task)) as streams, ClientSession(*streams) as session:
        hello = await session.initialize()
        saw = {
            "seconds": time.monotonic() - begun,
            "server": hello.server_info.name,
            "version": hello.protocol_version,
            "instructions": hello.instructions,
        }
        saw.update(await look_around(session))
        saw.update(await work(session, task.parent))
        return saw


async def newest(binary: str, task: Path) -> dict:
    """The newest revision of the protocol, without a handshake."""
    async with Client(stdio_client(server(binary, task))) as client:
        tools = await client.list_tools()
        return {"version": client.protocol_version, "tools": [tool.name for tool in tools.tools]}


async def unprepared(binary: str, task: Path) -> dict:
    """A machine that cannot judge: every call says so, and the server goes on."""
    workspace = task.parent / "workspace"
    workspace.mkdir()
    (workspace / "model_new.py").write_text((task.parent / "model_new.py").read_text())
    given = server(binary, task, ["--python", "/nowhere/python"])
    async with stdio_client(given) as streams, ClientSession(*streams) as session:
        await session.initialize()
        return {"calls": [seen(await session.call_tool(tool)) for tool in ("compile", "judge")]}


SCENES = {"whole": whole, "newest": newest, "unprepared": unprepared}


def main() -> None:
    scene, binary, task = sys.argv[1:]
    print(json.dumps(anyio.run(SCENES[scene], binary, Path(task))))


main()
