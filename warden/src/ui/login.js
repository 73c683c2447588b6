// The login form: says when a token was refused, and keeps the rest of the address, so that a shared view opens.
{
  const given = new URLSearchParams(location.search);
  if (given.has("token")) document.getElementById("refused").hidden = false;
  given.delete("token");
  const form = document.querySelector("form");
  for (const [name, value] of given) {
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = name;
    field.value = value;
    form.append(field);
  }
  history.replaceState(null, "", given.size ? `/?${given}` : "/");
}
