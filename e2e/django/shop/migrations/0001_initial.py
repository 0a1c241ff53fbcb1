"""The table, and rows by a function of Python, as migrations often have them."""

from django.db import migrations, models


def add_first(apps, schema_editor):
    order = apps.get_model("shop", "Order")
    order.objects.using(schema_editor.connection.alias).create(item="first")


class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("item", models.CharField(max_length=100)),
                ("amount", models.IntegerField(default=1)),
            ],
        ),
        migrations.RunPython(add_first, migrations.RunPython.noop),
    ]
