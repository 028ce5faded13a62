"""SubmissionService: clients submit and query, runners fetch files and renew leases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
import grpc.aio

from hrm.core.submission.submissions import SubmissionEntry
from hrm.errors import InvalidRequest
from hrm.identity.caller import caller, check_scope, user_of
from hrm.master.file_store import PIECE_BYTES
from hrm.master.owners import Owners, hide_submission
from hrm.master.paging import MESSAGE_LISTED, NAME_LISTED, check_limit, page
from hrm.master.submission_interpreter import Submissions
from hrm.master.user_groups import UserGroups
from hrm.text import shortened
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc
from hrm.wire import codec
from hrm.wire import submissions as sw

__all__ = ["SubmissionService"]

FILES_MAX = 10_000

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class SubmissionService(submission_pb2_grpc.SubmissionServiceServicer):
    def __init__(self, submissions: Submissions, owners: Owners, groups: UserGroups) -> None:
        self._submissions = submissions
        self._owners = owners
        self._groups = groups
        self._files = submissions.files

    async def FindFiles(  # noqa: N802
        self, request: pb.FindFilesRequest, context: _Context
    ) -> pb.FindFilesResponse:
        if len(request.files) > FILES_MAX:
            raise InvalidRequest(f"at most {FILES_MAX} files a submission")
        for each in request.files:
            self._files.check_size(each.size_bytes, codec.to_text(each.name, "file.name"))
        known = [sw.to_file(each) for each in request.files if each.sha256]
        offsets = await self._files.find(known)
        return pb.FindFilesResponse(offsets=offsets)

    async def PutPiece(  # noqa: N802
        self, request: pb.PutPieceRequest, context: _Context
    ) -> pb.PutPieceResponse:
        if len(request.data) > PIECE_BYTES:
            raise InvalidRequest(f"a piece has at most {PIECE_BYTES} bytes")
        digest, size, name = sw.to_file(request.file)
        offset = await self._files.put(digest, size, name, request.offset, request.data)
        return pb.PutPieceResponse(offset=offset)

    async def GetFile(  # noqa: N802
        self, request: pb.GetFileRequest, context: _Context
    ) -> AsyncIterator[pb.FilePiece]:
        self._owners.check_file(request.sha256)
        async for data in self._files.pieces(request.sha256, request.offset):
            yield pb.FilePiece(data=data)

    async def Submit(  # noqa: N802
        self, request: pb.SubmitRequest, context: _Context
    ) -> pb.Submission:
        request.driver.user = user_of(request.driver.user)
        before = self._submissions.core.submitted_as(request.key)
        if before is not None:
            self._owners.check(before.record.submission_id)
        groups = await self._groups.of(request.driver.user)
        entry = self._submissions.submit(
            request.key,
            lambda submission_id, now: sw.to_record(request, submission_id, now, groups),
            request.tokens,
        )
        return self._message(await entry)

    async def Get(  # noqa: N802
        self, request: pb.GetSubmissionRequest, context: _Context
    ) -> pb.Submission:
        return self._message(self._submissions.find(request.submission_id))

    async def List(  # noqa: N802
        self, request: pb.ListSubmissionsRequest, context: _Context
    ) -> pb.ListSubmissionsResponse:
        core = self._submissions.core
        entries = list(core.entries.values()) if request.include_ended else core.live()
        limit = check_limit(request.limit)
        listed, token = page(
            entries,
            lambda x: (x.record.submitted_at_s, x.record.submission_id),
            self._listed,
            request,
            limit=limit,
        )
        return pb.ListSubmissionsResponse(submissions=listed, next_page_token=token)

    async def Kill(  # noqa: N802
        self, request: pb.KillSubmissionRequest, context: _Context
    ) -> pb.Submission:
        reason = codec.to_text(request.reason, "reason") or f"killed by {caller()}"
        self._submissions.find(request.submission_id)
        self._owners.check(request.submission_id)
        killed = self._submissions.kill(request.submission_id, reason)
        return self._message(await killed)

    async def Watch(  # noqa: N802
        self, request: pb.GetSubmissionRequest, context: _Context
    ) -> AsyncIterator[pb.Submission]:
        async for entry in self._submissions.watch(request.submission_id):
            yield self._message(entry)

    async def Tie(  # noqa: N802
        self, request: pb.TieSubmissionRequest, context: _Context
    ) -> pb.TieSubmissionResponse:
        self._submissions.find(request.submission_id)
        self._owners.check(request.submission_id)
        await self._submissions.renew_tie(request.submission_id, request.ownership_key)
        return pb.TieSubmissionResponse()

    async def Lease(  # noqa: N802
        self, request: pb.LeaseDriverRequest, context: _Context
    ) -> pb.LeaseDriverResponse:
        check_scope(request.submission_id)
        asked = self._submissions.lease(
            request.submission_id, request.attempt, request.gone, request.ownership_key
        )
        lease_s, renew_s = await asked
        return pb.LeaseDriverResponse(lease_s=lease_s, renew_s=renew_s)

    async def GetTokens(  # noqa: N802
        self, request: pb.GetTokensRequest, context: _Context
    ) -> pb.GetTokensResponse:
        check_scope(request.submission_id)
        tokens = self._submissions.tokens_of(
            request.submission_id, request.attempt, request.ownership_key
        )
        return pb.GetTokensResponse(tokens=tokens)

    def _message(self, entry: SubmissionEntry) -> pb.Submission:
        submissions = self._submissions
        message = sw.from_entry(entry, submissions.host_of(entry), submissions.waits_for(entry))
        if not self._owners.is_own(entry.record.submission_id):
            hide_submission(message)
        return message

    def _listed(self, entry: SubmissionEntry) -> pb.Submission:
        """For a list: long user-supplied text is truncated."""
        message = self._message(entry)
        message.name = shortened(message.name, NAME_LISTED)
        message.user = shortened(message.user, NAME_LISTED)
        message.message = shortened(message.message, MESSAGE_LISTED)
        return message
