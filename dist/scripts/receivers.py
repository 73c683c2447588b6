"""The request bodies that the services of the notification recipes accept, according to their documentation."""

# Each field with its type or a validation function; a trailing `?` marks an optional field.
SHAPES = {
    # Execute webhook.
    "discord": {
        "embeds": [
            {
                "title?": lambda value: isinstance(value, str) and len(value) <= 256,
                "description?": lambda value: isinstance(value, str) and len(value) <= 4096,
                "color?": int,
                "timestamp?": str,
                "fields?": lambda value: isinstance(value, list) and len(value) <= 25,
                "footer?": {"text": str},
            }
        ],
        "allowed_mentions?": {"parse": lambda value: value == []},
    },
    # Incoming webhooks.
    "slack": {"text": str},
    "mattermost": {"text": str},
    # Bot API, sendMessage.
    "telegram": {
        "chat_id": lambda value: isinstance(value, (int, str)),
        "text": lambda value: isinstance(value, str) and 1 <= len(value) <= 4096,
        "disable_notification?": bool,
        "parse_mode?": lambda value: value in ("HTML", "Markdown", "MarkdownV2"),
    },
    # Publish as JSON.
    "ntfy": {
        "topic": str,
        "message?": str,
        "title?": str,
        "tags?": [str],
        "priority?": lambda value: value in range(1, 6),
    },
    # POST /message.
    "gotify": {"message": str, "title?": str, "priority?": int},
    # PUT /_matrix/client/v3/rooms/{roomId}/send/m.room.message/{txnId}.
    "matrix": {"msgtype": lambda value: value == "m.text", "body": str, "m.mentions?": {}},
    # A Power Automate workflow that posts the received adaptive card.
    "teams": {
        "type": lambda value: value == "message",
        "attachments": [
            {
                "contentType": lambda value: value == "application/vnd.microsoft.card.adaptive",
                "content": {
                    "type": lambda value: value == "AdaptiveCard",
                    "version": str,
                    "body": [lambda element: element.get("type") in ("TextBlock", "FactSet")],
                },
            }
        ],
    },
}


def faults(shape, value, path="$"):
    """Returns the faults of a value, one message each."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{path} is not an object: {value!r}"]
        known = {key.rstrip("?") for key in shape}
        found = [f"{path}.{key} is unknown" for key in value if key not in known]
        for key, inner in shape.items():
            name = key.rstrip("?")
            if name in value:
                found += faults(inner, value[name], f"{path}.{name}")
            elif name == key:
                found.append(f"{path}.{name} is missing")
        return found
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return [f"{path} is not a non-empty array: {value!r}"]
        return [text for number, item in enumerate(value) for text in faults(shape[0], item, f"{path}[{number}]")]
    good = isinstance(value, shape) if isinstance(shape, type) else shape(value)
    return [] if good else [f"{path} must not be {value!r}"]
