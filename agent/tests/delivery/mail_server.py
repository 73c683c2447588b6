"""A mail server for tests: aiosmtpd with TLS and AUTH. Usage: mail_server.py starttls|implicit CERT KEY

Prints its port, then each accepted mail as one line of JSON. Ends at the end of its input.
"""
import asyncio
import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult

MODE, CERT, KEY = sys.argv[1:]


def check(_server, _session, _envelope, _mechanism, login):
    # handled=False lets the server itself respond to a failed login.
    return AuthResult(success=login.login == b"user" and login.password == b"pass word", handled=False)


class Handler:
    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        print(json.dumps({
            "tls": server.transport.get_extra_info("ssl_object") is not None,
            "authenticated": bool(session.authenticated),
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "headers": [[name, str(value)] for name, value in mail.items()],
            "plain": mail.get_body(("plain",)).get_content(),
            "html": mail.get_body(("html",)).get_content(),
        }), flush=True)
        return "250 accepted by the test"


async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERT, KEY)
    loop = asyncio.get_running_loop()
    if MODE == "implicit":
        # The session only recognizes TLS that it started itself with STARTTLS.
        smtp, server_tls = {"auth_require_tls": False}, context
    else:
        smtp, server_tls = {"tls_context": context, "require_starttls": True}, None
    server = await loop.create_server(
        lambda: SMTP(Handler(), hostname="localhost", authenticator=check, auth_required=True, **smtp),
        host="127.0.0.1", port=0, ssl=server_tls,
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main())
