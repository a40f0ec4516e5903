"""A web site inside the test: paths and what they answer, served by the mission's own server on loopback."""

import asyncio
import threading

from mission_gym_missions.explore.server import Connection, SiteServer
from mission_gym_missions.explore.site import Reply, SiteRules


def page(title="a page", *links, text="", status=200):
    """A page that links to paths, each with itself as the text, or to (path, text)."""
    shown = [(link, link.strip("/")) if isinstance(link, str) else link for link in links]
    anchors = "".join(f'<a href="{path}">{words}</a>' for path, words in shown)
    return Reply(f"<title>{title}</title><p>{text}</p>{anchors}".encode(), status)


class LocalSite(SiteServer):
    """A context manager: serves `replies` by path, and notes what was asked for. port: 0 for any."""

    def __init__(self, replies, port=0):
        self.replies, self.asked, self.port = replies, [], port
        self._connections = []

    def answer(self, path):
        self.asked.append(path)
        return self.replies.get(path, Reply(b"", 404, "Not Found")), 0.0

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(60)
        return self

    async def _run(self, ready):
        super().__init__(SiteRules())
        self._over = asyncio.Event()
        server = await self.loop.create_server(self._connect, "127.0.0.1", self.port, reuse_address=True)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        ready.set()
        await self._over.wait()
        server.close()
        for connection in self._connections:
            connection._transport.abort()

    def _connect(self):
        self._connections.append(Connection(self))
        return self._connections[-1]

    def __exit__(self, *error):
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)
