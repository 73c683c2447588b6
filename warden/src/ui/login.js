// The login form keeps the rest of the address, so that a shared view opens, and takes a token out of it.
{
  const given = new URLSearchParams(location.search);
  given.delete("token");
  const view = given.size ? `?${given}` : "";
  document.querySelector("form").action = `/login${view}`;
  history.replaceState(null, "", `/${view}`);
}
