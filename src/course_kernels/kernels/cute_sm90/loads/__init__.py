"""Ways to bring blocks of A and B into stages, by the warps that ``form.Form.loading_warps`` names."""
