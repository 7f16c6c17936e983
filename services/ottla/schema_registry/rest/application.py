"""A request from its bytes to the bytes of its answer: media types, compression, who may ask, where a write goes, errors.

What is answered for an id does not change until something is deleted, a deletion is taken back, or an alias changes, so whole answers are
kept, by target; a request for one of those costs a look into a dictionary.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import logging
import zlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qs

from ottla.metrics.cells import Histogram
from ottla.schema_registry.leadership import Leadership
from ottla.schema_registry.rest.api import Api, Call, Text, context_of_path
from ottla.schema_registry.rest.forwarding import Forwarder
from ottla.schema_registry.rest.http import Answer, Request, Response, header_lines
from ottla.schema_registry.rest.routes import Match, Route, Router
from ottla.schema_registry.rest.security import Authentication
from ottla.schema_registry.state.errors import (
    ForwardingFailed,
    Incompatible,
    InvalidSchema,
    LeaderUnknown,
    MalformedRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotAuthenticated,
    NotFound,
    RegistryError,
    SchemaTooLarge,
    StoreFailed,
    UnsupportedMediaType,
)
from ottla.serving.pages import Page, pages_of

log: Final = logging.getLogger(__name__)

MEDIA_TYPES: Final = ("application/vnd.schemaregistry.v1+json", "application/vnd.schemaregistry+json", "application/json")
READ_TYPES: Final = (*MEDIA_TYPES, "application/octet-stream")
_CONTENT_LINES: Final = {name: header_lines({"content-type": name, "vary": "Accept, Accept-Encoding"}) for name in MEDIA_TYPES}
COMPRESSED_FROM_BYTES: Final = 2_048
CACHED_BYTES: Final = 64 * 1024 * 1024
CACHED_ROUTES: Final = ("schema_by_id", "schema_text_by_id", "schema_by_guid")
OFFSET_HEADER: Final = b"x-registry-offset"
FORWARD_HEADER: Final = b"x-forward"
UNKNOWN_HEADER: Final = b"confluent-accept-unknown-properties"
CATCH_UP_SECONDS: Final = 1.0
FOREVER: Final = "max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Cors:
    """`access.control.allow.…`; no origin turns it off."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    def allows(self, origin: str) -> bool:
        """Whether pages of an origin may read the answers."""
        return "*" in self.origins or origin in self.origins


@dataclass(slots=True)
class Counts:
    """What has been answered, for metrics."""

    by_route: dict[tuple[str, int], int] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=Histogram)
    cached: int = 0

    def count(self, route: str, status: int) -> None:
        """Counts an answer."""
        key = route, status
        self.by_route[key] = self.by_route.get(key, 0) + 1


class Application:
    """Answers requests.

    Args:
        api: what the routes answer.
        leadership: what has been replayed here, and who writes.
        forwarder: sends writes to the leader.
        authentication: None lets everybody in.
        cors: what browsers are allowed.
        headers: that every answer has (`response.http.headers.config`).
        body_bytes: the largest body after it was decompressed.
        incompatible_code: 409 or 40901.
    """

    def __init__(
        self,
        api: Api,
        leadership: Leadership,
        forwarder: Forwarder,
        *,
        authentication: Authentication | None = None,
        cors: Cors | None = None,
        headers: Mapping[str, str] | None = None,
        body_bytes: int = 2 * 1024 * 1024,
        incompatible_code: int = Incompatible.code,
    ) -> None:
        self._api = api
        self._leadership = leadership
        self._forwarder = forwarder
        self._authentication = authentication
        self._cors = cors or Cors()
        self._headers = header_lines(headers or {})
        self._body_bytes = body_bytes
        self._incompatible_code = incompatible_code
        self._router = Router()
        self._cache: dict[tuple[bytes, bytes, bytes, bytes], bytes] = {}
        self._cache_bytes = 0
        self._cache_of: tuple[int, int] = (0, 0)
        self._pages: dict[str, Page] | None = None
        self.counts = Counts()

    def handle(self, request: Request) -> Answer:
        """Answers a request; raises nothing."""
        headers = request.headers
        if request.method == b"GET" and request.keep_alive and self._authentication is None and not request.fault:
            state = self._leadership.state
            if self._cache_of != (id(state), state.removals):
                self._cache.clear()
                self._cache_bytes, self._cache_of = 0, (id(state), state.removals)
            found = self._cache.get(_key_of(request))
            if found is not None and not (b"origin" in headers or b"if-none-match" in headers or OFFSET_HEADER in headers):
                self.counts.cached += 1
                return found
        return self._answer(request)

    def _answer(self, request: Request) -> Answer:
        media_type, route_name = MEDIA_TYPES[0], "none"
        try:
            if request.fault:
                raise _fault(request.fault, self._body_bytes)
            path, _, query = request.target.decode("latin-1").partition("?")
            if path == "/ui" or path.startswith("/ui/"):
                route_name = "ui"
                return self._page(request, path)
            match = self._router.find(path)
            if request.method == b"OPTIONS":
                return self._preflight(request, match)
            route = match.route(request.method.decode("latin-1"))
            route_name = route.name
            if self._authentication is not None:
                self._authentication.check(request.headers.get(b"authorization", b""), writes=route.writes)
            media_type = _accepted(request.header(b"accept"))
            call = self._call(request, route, match, query)
            if OFFSET_HEADER in request.headers or (route.writes and not self._leadership.is_leader):
                return self._wait(request, route, call, media_type)
            found = getattr(self._api, route.name)(call)
            may_keep = route.name in CACHED_ROUTES and self._api.is_of_asked_subject(call)
            if isinstance(found, Awaitable):
                return self._finish(request, route, found, media_type, may_keep=may_keep)
            return self._success(request, route, found, media_type, may_keep=may_keep)
        except RegistryError as error:
            return self._error(request, route_name, error, media_type)
        except Exception:  # where a request ends
            log.exception("%s %s failed in a way that was not foreseen", request.method.decode("latin-1"), request.target[:200])
            return self._error(request, route_name, StoreFailed("Internal Server Error"), media_type)

    def _page(self, request: Request, path: str) -> Response:
        """A file of the page; it asks this API as any client does, with what its reader may."""
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("HTTP 405 Method Not Allowed")
        if self._authentication is not None:
            self._authentication.check(request.headers.get(b"authorization", b""), writes=False)
        if path == "/ui":  # what the page names is below, also behind a proxy that adds a path before
            self.counts.count("ui", 308)
            return Response(308, b"", self._headers + header_lines({"location": "ui/"}))
        if self._pages is None:
            self._pages = pages_of(__package__)
        page = self._pages.get(path.removeprefix("/ui/"))
        if page is None:
            raise NotFound("HTTP 404 Not Found")
        is_same = page.etag in request.header(b"if-none-match")
        self.counts.count("ui", 304 if is_same else 200)
        return Response(304 if is_same else 200, b"" if is_same else page.body, self._headers + header_lines(page.headers))

    async def _wait(self, request: Request, route: Route, call: Call, media_type: str) -> Response:
        """Answers what needs the leader, or records that this node may not have replayed yet."""

        async def answered() -> Any:
            wanted = request.header(OFFSET_HEADER)
            if wanted.isascii() and wanted.isdigit() and len(wanted) < 19:
                await self._leadership.wait_for(int(wanted))
            if not route.writes:
                found = getattr(self._api, route.name)(call)
                return await found if isinstance(found, Awaitable) else found
            if not self._leadership.is_leader:
                found = await self._registered_here(call) if route.name == "register" else None
                return await self._forwarded(request) if found is None else found
            return await getattr(self._api, route.name)(call)

        return await self._finish(request, route, answered(), media_type)

    async def _registered_here(self, call: Call) -> Any:
        """What a registration is answered with where nothing has to be written; None if the leader has to say."""
        try:
            return await self._api.find_registered(call)
        except RegistryError:
            # It may be refused only because a config, or what it refers to, has not been replayed here yet.
            if self._leadership.leader_url is None:
                raise
            return None

    async def _forwarded(self, request: Request) -> Response:
        url = self._leadership.leader_url
        if url is None:
            raise LeaderUnknown("Leader not known.")
        if request.header(FORWARD_HEADER).lower() == "true":
            raise ForwardingFailed(f"this node is not the leader, and the request was forwarded already; the leader is {url}")
        response = await self._forwarder.forward(url, request)
        _, _, offset = response.headers.partition(OFFSET_HEADER + b": ")
        digits = offset.partition(b"\r\n")[0]
        if digits.isdigit() and len(digits) < 19:
            # Who asks this node next finds what it has written. A node that cannot read at the moment answers all the same.
            with contextlib.suppress(TimeoutError, RegistryError):
                async with asyncio.timeout(CATCH_UP_SECONDS):
                    await self._leadership.wait_for(int(digits))
        return replace(response, headers=self._common(request) + response.headers)

    async def _finish(self, request: Request, route: Route, answer: Awaitable[Any], media_type: str, *, may_keep: bool = False) -> Response:
        loop = asyncio.get_running_loop()
        began = loop.time()
        removals = self._leadership.state.removals
        try:
            found = await answer
            if isinstance(found, Response):
                self.counts.count(route.name, found.status)
                return found
            return self._success(request, route, found, media_type, may_keep=may_keep and removals == self._leadership.state.removals)
        except RegistryError as error:
            return self._error(request, route.name, error, media_type)
        except RecursionError:  # each of the schemas that refer to one another may be as deep as is allowed
            too_deep = InvalidSchema("Invalid schema, details: with its references the schema is nested too deep")
            return self._error(request, route.name, too_deep, media_type)
        except Exception:  # where a request ends
            log.exception("%s failed in a way that was not foreseen", route.name)
            return self._error(request, route.name, StoreFailed("Internal Server Error"), media_type)
        finally:
            self.counts.seconds.observe(loop.time() - began)

    # Requests.

    def _call(self, request: Request, route: Route, match: Match, query: str) -> Call:
        try:
            asked = parse_qs(query, keep_blank_values=True, max_num_fields=200) if query else {}
        except ValueError:
            raise MalformedRequest("the query has too many parameters") from None
        body = self._body(request) if route.body else {}
        return Call(route, match.values, asked, body, context_of_path(match.context), match.context is not None)

    def _body(self, request: Request) -> Mapping[str, Any]:
        media_type = request.header(b"content-type").partition(";")[0].strip().lower()
        if media_type and media_type not in READ_TYPES:
            raise UnsupportedMediaType("HTTP 415 Unsupported Media Type")
        content = request.body
        encoding = request.header(b"content-encoding").lower()
        if encoding == "gzip":
            content = _decompressed(content, self._body_bytes)
        elif encoding not in ("", "identity"):
            raise UnsupportedMediaType(f"HTTP 415: the content encoding {encoding[:40]} is not read")
        try:
            body = json.loads(content.decode())
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"the body is not UTF-8: byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise MalformedRequest(f"the body is not JSON: {str(error)[:200]}") from None
        if not isinstance(body, dict):
            raise MalformedRequest("the body is not a JSON object")
        return body

    def _preflight(self, request: Request, match: Match) -> Response:
        methods = sorted({*match.routes, "OPTIONS"} | ({"HEAD"} if "GET" in match.routes else set()))
        headers = {"allow": ", ".join(methods)}
        if self._cors.origins and b"access-control-request-method" in request.headers:
            asked = request.header(b"access-control-request-headers")
            headers |= {
                "access-control-allow-methods": ",".join(self._cors.methods or methods),
                "access-control-allow-headers": ",".join(self._cors.headers) or asked.replace("\r", "").replace("\n", ""),
                "access-control-max-age": "1800",
            }
        return Response(200, b"", self._common(request) + header_lines(headers))

    # Answers.

    def _common(self, request: Request) -> bytes:
        origin = request.header(b"origin")
        if not origin or not self._cors.allows(origin):
            return self._headers
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": "X-Registry-Offset", "vary": "Origin"}
        return self._headers + header_lines(allowed)

    def _success(self, request: Request, route: Route, found: Any, media_type: str, *, may_keep: bool) -> Response:
        if _is_former_java(request):
            found = _former(route.name, found)
        body = found.text.encode() if isinstance(found, Text) else b"" if route.status == 204 else _dumped(found)
        lines = b"" if route.status == 204 else _CONTENT_LINES[media_type]
        headers: dict[str, str] = {}
        status = route.status
        is_lasting = route.name in CACHED_ROUTES and not (isinstance(found, dict) and "maxId" in found)
        if is_lasting:
            whose = "public" if self._authentication is None else "private"
            # A subject may be an alias, and of another one tomorrow; and but for the text alone an answer says whether it was deleted.
            for_long = FOREVER if route.name == "schema_text_by_id" and b"subject=" not in request.target else "no-cache"
            headers |= {"cache-control": f"{whose}, {for_long}", "etag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'}
            if headers["etag"] in request.header(b"if-none-match"):
                status, body = 304, b""
        else:
            lines += b"x-registry-offset: %d\r\n" % self._leadership.state.next_offset
        if len(body) >= COMPRESSED_FROM_BYTES and "gzip" in request.header(b"accept-encoding"):
            body = gzip.compress(body, 1, mtime=0)
            headers["content-encoding"] = "gzip"
        self.counts.count(route.name, status)
        response = Response(status, body, self._common(request) + lines + header_lines(headers))
        is_kept = is_lasting and may_keep
        if is_kept and status == 200 and request.method == b"GET" and self._authentication is None and b"origin" not in request.headers:
            self._keep(request, response)
        return response

    def _keep(self, request: Request, response: Response) -> None:
        key = _key_of(request)
        encoded = response.encoded()
        size = len(encoded) + sum(map(len, key)) + 200
        if size > CACHED_BYTES // 16:
            return
        if self._cache_bytes + size > CACHED_BYTES:
            self._cache.clear()
            self._cache_bytes = 0
        self._cache[key] = encoded
        self._cache_bytes += size

    def _error(self, request: Request, route: str, error: RegistryError, media_type: str) -> Response:
        code = self._incompatible_code if isinstance(error, Incompatible) else error.code
        headers = {"content-type": media_type}
        if isinstance(error, NotAuthenticated) and self._authentication is not None:
            headers["www-authenticate"] = f'Basic realm="{self._authentication.realm}"'
        if isinstance(error, MethodNotAllowed):
            headers["allow"] = self._allowed(request)
        if isinstance(error, Incompatible | SchemaTooLarge):
            log.info("%s %s: %s", route, request.target[:200].decode("latin-1"), error.message[:500])
        self.counts.count(route, error.status)
        body = _dumped({"error_code": code, "message": error.message})
        return Response(error.status, body, self._common(request) + header_lines(headers))

    def _allowed(self, request: Request) -> str:
        try:
            return ", ".join(sorted(self._router.find(request.target.decode("latin-1").partition("?")[0]).routes))
        except NotFound:
            return ""


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=float)


def _dumped(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON may have and UTF-8 may not
        return json.dumps(value, separators=(",", ":"), default=float).encode()


def _is_former_java(request: Request) -> bool:
    """Whether the client may be Java's of before 6.2, which fails at a field that it does not know.

    One of since 7.1 registers with `normalize`, and one of since 8.2 sends a header; without both it gets what Confluent's 7 answers.
    """
    headers = request.headers
    return headers.get(b"user-agent", b"").startswith(b"Java/") and UNKNOWN_HEADER not in headers and b"normalize=" not in request.target


def _former(route: str, found: Any) -> Any:
    """An answer with the fields that it had before Confluent's 8.0."""
    if isinstance(found, list):
        return [_former(route, entry) for entry in found]
    if not isinstance(found, dict) or "guid" not in found:
        return found
    if route == "register":
        return {"id": found["id"]}
    later = {"guid", "ts", "deleted", *(("subject", "version") if "id" not in found else ())}
    return {field: value for field, value in found.items() if field not in later and (field, value) != ("schemaType", "AVRO")}


def _key_of(request: Request) -> tuple[bytes, bytes, bytes, bytes]:
    """What an answer depends on, of those that are kept."""
    headers = request.headers
    form = b"former" if _is_former_java(request) else b""
    return request.target, headers.get(b"accept", b""), headers.get(b"accept-encoding", b""), form


def _accepted(accept: str) -> str:
    """The media type of the answer: the first that is ours, whatever its weight is; none is all.

    Raises:
        NotAcceptable: none is ours.
    """
    if not accept:
        return MEDIA_TYPES[0]
    for media_range in accept.split(","):
        wanted = media_range.partition(";")[0].strip().lower()
        if wanted in MEDIA_TYPES:
            return wanted
        if wanted in ("*/*", "application/*", "*"):
            return MEDIA_TYPES[0]
    raise NotAcceptable("HTTP 406 Not Acceptable")


def _decompressed(content: bytes, limit: int) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        found = decompressor.decompress(content, limit + 1)
    except zlib.error as error:
        raise MalformedRequest(f"the body is not gzip: {error}") from None
    if len(found) > limit or decompressor.unconsumed_tail:
        raise SchemaTooLarge(f"the request is larger than {limit} bytes")
    if not decompressor.eof:
        raise MalformedRequest("the body is not gzip: it is cut")
    return found


def _fault(fault: str, body_bytes: int) -> RegistryError:
    if fault == "body too large":
        return SchemaTooLarge(f"the request is larger than {body_bytes} bytes")
    return MalformedRequest(f"HTTP 400 Bad Request: {fault[:200]}")
