"""The explore mission: find one page of a web site over real HTTP, in few requests.

env, aio_env: the plain and the coroutine form. settings: keyword arguments. explorer: rules, tasks and
episodes. fetch: requests without I/O; client: plain sockets. pages, robots: parsers. memory, graph,
observation: the explorer's knowledge. baselines, render. server, site: the generated sites.
"""
